//! The device reads a context back: `cargo xtask hw-test --layer context`.

mod support;

use cann_sim::hw_test;
use comm_context::abi::{CommContext, CommContextTail, DeviceAddr};
use comm_context::comm::{Communicator, Window};
use comm_hccl::{Device, DeviceMemory, HcclComm, KernelBinary, LaunchSpec, Stream};
use support::devices::{in_processes, timeout};

/// What the kernel writes: the bytes at 0, the fields at this offset.
const FIELDS_AT: usize = 2048;

/// A context and its tail from the bytes that the device has.
fn bytes_of(device: &Device, at: DeviceAddr) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; size_of::<CommContext>() + size_of::<CommContextTail>()];
    device.read(at, &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// The fields as the header names them, taken from the bytes by their pinned offsets.
fn fields_of(bytes: &[u8]) -> Vec<u64> {
    let u32_at = |at: usize| u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let head = [size_of::<CommContext>() as u64, u64_at(0), u64_at(8), u32_at(16), u32_at(20), u64_at(24)];
    let windows = (0..128).map(|rank| u64_at(32 + rank * 8));
    head.into_iter().chain(windows).chain([1056, 1064, 1072].map(u64_at)).collect()
}

/// Runs the kernel on a context; returns the bytes and the fields that it saw.
fn seen_by_the_device(
    device: &Device,
    context: DeviceAddr,
) -> Result<(Vec<u8>, Vec<u64>), Box<dyn std::error::Error>> {
    let stream = Stream::create(device)?;
    let binary = KernelBinary::load(device, &hw_test::kernel("read_context"), "kernel_entry")?;
    let memory = DeviceMemory::allocate(device, 8192)?;
    memory.fill(0xEE)?;
    let (at, list_at) = (memory.addr().0, 4096);
    let list = [context.0, at, at + FIELDS_AT as u64];
    memory.write(list_at, &list.map(u64::to_le_bytes).concat())?;
    binary.kernel("kernel_entry")?.run(&stream, &LaunchSpec::default(), DeviceAddr(at + list_at as u64))?;
    let mut all = vec![0; list_at];
    memory.read(0, &mut all)?;
    memory.release()?;
    binary.release()?;
    stream.release()?;
    let fields = all[FIELDS_AT..].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let fields = fields.take(6 + 128 + 3).collect();
    all.truncate(size_of::<CommContext>() + size_of::<CommContextTail>());
    Ok((all, fields))
}

/// What must stand in the context of a rank.
fn check(rank: u32, nranks: u32, window: &Window, bytes: &[u8]) -> Result<(), String> {
    let fields = fields_of(bytes);
    let own = fields[6 + rank as usize];
    let others = (0..nranks).all(|peer| fields[6 + peer as usize] != 0);
    let right = fields[3..6] == [u64::from(rank), u64::from(nranks), window.size as u64]
        && own == window.base.0
        && others
        && fields[6 + 128] == CommContextTail::MAGIC;
    if right {
        Ok(())
    } else {
        Err(format!("rank {rank} of {nranks}, {window:?}: the context holds {fields:x?}"))
    }
}

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer context"]
fn the_device_reads_its_context_byte_for_byte() {
    let devices = hw_test::at_least(1);
    let nranks = devices.len() as u32;
    let prepared = HcclComm::prepare_group(nranks).unwrap();
    in_processes("context", &devices, &prepared.fds().collect::<Vec<_>>(), &|rank, device| {
        let comm = HcclComm::join(device, &prepared, rank, timeout()).map_err(|error| error.to_string())?;
        let window = comm.alloc_windows(1 << 16, timeout()).map_err(|error| error.to_string())?;
        let host = bytes_of(device, window.context)?;
        check(rank, nranks, &window, &host)?;
        let (bytes, fields) =
            seen_by_the_device(device, window.context).map_err(|error| error.to_string())?;
        if bytes != host {
            let at = (0..host.len()).find(|at| bytes[*at] != host[*at]);
            return Err(format!(
                "rank {rank}: the device sees other bytes than the host wrote, first at {at:?}"
            ));
        }
        if fields != fields_of(&host) {
            return Err(format!(
                "rank {rank}: the device reads the fields as {fields:x?} of {:x?}",
                fields_of(&host)
            ));
        }
        comm.barrier(timeout()).map_err(|error| error.to_string())?;
        Box::new(comm).destroy(timeout()).map_err(|error| error.to_string())
    });
}
