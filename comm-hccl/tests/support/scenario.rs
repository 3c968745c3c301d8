//! A scenario of two ranks on the device layer: everything that the layer can do, each share mode twice.

use super::*;
use comm_context::abi::DeviceAddr;
use comm_hccl::*;
use std::error::Error;
use std::path::Path;

/// The kernel that the parts run.
pub(crate) const KERNEL_VARIABLE: &str = "CHIPCOMM_TEST_KERNEL";

/// Compiles a kernel that adds its second argument to the first word of the memory that its first argument
/// points to.
pub(crate) fn compile_kernel(dir: &Path) -> std::path::PathBuf {
    let (source, library) = (dir.join("kernel.cpp"), dir.join("kernel.so"));
    let text = "#include <cstdint>\nextern \"C\" void kernel_entry(int64_t *args) {\n  \
                *reinterpret_cast<int64_t *>(args[0]) += args[1];\n}\n";
    std::fs::write(&source, text).unwrap();
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    assert!(compiler.status().expect("g++ is needed for this test").success());
    cann_sim::hw_test::describe_kernel(&library);
    library
}

/// Prints how a part ended; see [`outcome`].
pub(crate) fn report(outcome: Result<(), Box<dyn Error>>) {
    match outcome {
        Ok(()) => println!("\noutcome: ok"),
        Err(error) => println!("\noutcome: {error}"),
    }
}

/// What a part printed with [`report`].
pub(crate) fn outcome(output: &Output) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().find_map(|line| line.strip_prefix("outcome: ").map(str::to_owned))
}

/// Like [`swap`], but a peer that is gone is an error.
pub(crate) fn try_swap<const N: usize>(
    socket: &mut UnixStream,
    mine: &[u8; N],
) -> Result<[u8; N], Box<dyn Error>> {
    let mut theirs = [0; N];
    socket.write_all(mine).and_then(|()| socket.read_exact(&mut theirs)).map_err(|_| "the peer is gone")?;
    Ok(theirs)
}

/// Everything, from loading to the end of the runtime.
pub(crate) fn full_cycle(rank: u32) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::start(Vendor::load(None)?)?;
    let done = on_device(runtime, rank);
    let finalised = runtime.finalise();
    done?;
    Ok(finalised?)
}

fn on_device(runtime: Runtime, rank: u32) -> Result<(), Box<dyn Error>> {
    runtime.soc_name();
    let device = Device::open(runtime, LogicalDevice(rank), &VisibleDevices::from_env()?)?;
    use_device(&device, rank)?;
    Ok(device.close()?)
}

fn use_device(device: &Device, rank: u32) -> Result<(), Box<dyn Error>> {
    let mut socket = other_rank();
    let stream = Stream::create(device)?;
    run_kernel(device, &stream)?;
    order_streams(device, &stream)?;
    add_words(device, &stream)?;
    // Both are ready before either waits for the other inside the vendor's code.
    try_swap(&mut socket, &[1])?;
    let root = if rank == 0 { Some(RootInfo::open(device)?) } else { None };
    let sent = root.map_or([0; RootInfo::LEN], |r| *r.as_bytes());
    let received = try_swap(&mut socket, &sent)?;
    let root = RootInfo::from_bytes(if rank == 0 { &sent } else { &received });
    let group = Group::join(device, &root, 2, rank)?;
    group.name()?;
    group.barrier(&stream)?;
    stream.synchronize()?;
    group.check()?;
    for mode in ShareMode::ALL {
        for _ in 0..2 {
            share_window(device, mode, rank, &mut socket)?;
        }
    }
    group.barrier(&stream)?;
    group.release()?;
    Ok(stream.release()?)
}

fn run_kernel(device: &Device, stream: &Stream) -> Result<(), Box<dyn Error>> {
    for _ in 0..2 {
        let memory = DeviceMemory::allocate(device, 4096)?;
        memory.fill(0)?;
        memory.write(0, &40_i64.to_le_bytes())?;
        let path = std::env::var_os(KERNEL_VARIABLE).unwrap();
        let binary = KernelBinary::load(device, Path::new(&path), "kernel_entry")?;
        let kernel = binary.kernel("kernel_entry")?;
        memory.write(64, &[memory.addr().0, 2].map(u64::to_le_bytes).concat())?;
        // The kernel adds its second argument to the word at its first, which is the memory's.
        kernel.run(stream, &LaunchSpec::default(), DeviceAddr(memory.addr().0 + 64))?;
        let mut word = [0; 8];
        memory.read(0, &mut word)?;
        assert_eq!(i64::from_le_bytes(word), 42);
        binary.release()?;
        memory.release()?;
    }
    Ok(())
}

/// One stream waits for what another has done.
fn order_streams(device: &Device, stream: &Stream) -> Result<(), Box<dyn Error>> {
    let second = Stream::create(device)?;
    for _ in 0..2 {
        let event = Event::create(device)?;
        event.record(stream)?;
        event.block(&second)?;
        second.synchronize()?;
        assert!(event.is_complete()?, "what waited for it is done");
        event.release()?;
    }
    Ok(second.release()?)
}

/// A word is added to another.
fn add_words(device: &Device, stream: &Stream) -> Result<(), Box<dyn Error>> {
    let words = DeviceMemory::allocate(device, 8)?;
    words.write(0, &[40_u32, 1].map(u32::to_le_bytes).concat())?;
    for _ in 0..2 {
        stream.add_word(words.addr(), DeviceAddr(words.addr().0 + 4))?;
    }
    stream.synchronize()?;
    let mut word = [0; 4];
    words.read(0, &mut word)?;
    assert_eq!(u32::from_le_bytes(word), 42);
    Ok(words.release()?)
}

/// One window of each rank, opened by the other, written and read, released.
pub(crate) fn share_window(
    device: &Device,
    mode: ShareMode,
    rank: u32,
    socket: &mut UnixStream,
) -> Result<(), Box<dyn Error>> {
    let window = LocalWindow::create(device, mode, 100_000)?;
    // HC-7: the double's memory is not zero at first.
    let mut byte = [1];
    device.read(DeviceAddr(window.addr().0 + window.size() as u64 - 1), &mut byte)?;
    assert_eq!(byte, [0], "the window is zeroed to its end");
    let peer = i32::from_le_bytes(try_swap(socket, &device.vendor_pid()?.0.to_le_bytes())?);
    window.allow(&[VendorPid(peer)])?;
    let ticket = WindowTicket::from_bytes(&try_swap(socket, &window.ticket().to_bytes())?)?;
    assert_eq!((ticket.mode(), ticket.size()), (mode, window.size()));
    let opened = PeerWindow::open(device, &ticket, Instant::now() + Duration::from_secs(60));
    // Both have tried before either releases its own window on an error.
    let tried = try_swap(socket, &[4]);
    let other = opened?;
    tried?;
    // The host cannot reach a peer's memory; the device can.
    device.write(DeviceAddr(window.addr().0 + 16), &[100 + rank as u8])?;
    device.copy(DeviceAddr(other.addr().0 + 8), DeviceAddr(window.addr().0 + 16), 1)?;
    try_swap(socket, &[2])?;
    device.read(DeviceAddr(window.addr().0 + 8), &mut byte)?;
    assert_eq!(byte, [101 - rank as u8], "what the peer wrote is here");
    other.release()?;
    // Neither frees what the other still has open.
    try_swap(socket, &[3])?;
    Ok(window.release()?)
}
