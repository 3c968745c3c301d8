//! The device of the vendor double, as a process: kernels run here, and only device memory is mapped here.
//!
//! `build.rs` compiles this file by itself, as a program without dependencies; `device_process.rs` starts it. Standard input
//! is a socket with one command a line and one answer a line, `ok …` or `error …`:
//! - `map ADDRESS SIZE PID FD`: maps the memory that process PID has as descriptor FD;
//! - `unmap ADDRESS SIZE`;
//! - `load PATH`, `find LIBRARY NAME`, `unload LIBRARY`: `dlopen`, `dlsym`, `dlclose`;
//! - `run FUNCTION BLOCKS PID FD WORD…`: starts threads that call the function with the words as its parameters, once for
//!   each block, and then write a byte to the pipe that process PID has as descriptor FD.
//!
//! The end of the socket ends the process, whatever its threads do: also while a kernel's library does not finish loading or
//! unloading.
//!
//! # Safety
//! Declares the system's functions itself, since there is no `libc` crate here. Calls kernels, which can do anything to this
//! process; that is what it is for.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

unsafe extern "C" {
    fn mmap(at: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    fn munmap(at: *mut c_void, len: usize) -> c_int;
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
    fn dlerror() -> *const c_char;
    fn fflush(stream: *mut c_void) -> c_int;
    fn _exit(status: c_int) -> !;
}

const READ_AND_WRITE: c_int = 3;
/// `MAP_SHARED | MAP_FIXED_NOREPLACE`.
const SHARED_HERE: c_int = 0x10_0001;
/// `RTLD_NOW`; `RTLD_LOCAL` is 0.
const NOW: c_int = 2;
/// Parameters that a kernel can have here: those that both architectures pass in registers.
const PARAMETERS: usize = 6;

/// Blocks that run at the same time: the vector cores of the smallest A2. The others wait for a core.
const CORES: usize = 40;

thread_local! {
    static BLOCK: Cell<i64> = const { Cell::new(0) };
}

/// The index of the calling block, as kernels of the device ask for it.
#[unsafe(no_mangle)]
pub extern "C" fn get_block_idx() -> i64 {
    BLOCK.get()
}

type Kernel = extern "C" fn(u64, u64, u64, u64, u64, u64);

fn main() {
    // SAFETY: standard input is the socket, and nothing else uses it.
    let socket = unsafe { <UnixStream as std::os::fd::FromRawFd>::from_raw_fd(0) };
    let mut answers = socket.try_clone().expect("a descriptor");
    let (commands, received) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(socket).lines().map_while(Result::ok).try_for_each(|line| commands.send(line)).ok();
        end()
    });
    for line in received {
        let answer = match obey(&line) {
            Ok(number) => format!("ok {number}\n"),
            Err(text) => format!("error {}\n", text.replace('\n', " ")),
        };
        if answers.write_all(answer.as_bytes()).is_err() {
            break;
        }
    }
    end()
}

fn end() -> ! {
    // SAFETY: takes a number. Kernels may still run; nothing of this process is needed any more.
    unsafe { _exit(0) }
}

fn obey(line: &str) -> Result<usize, String> {
    let (command, rest) = line.split_once(' ').ok_or("a command without arguments")?;
    if command == "load" {
        return load(rest);
    }
    if command == "find" {
        let (library, name) = rest.split_once(' ').ok_or("no name")?;
        return find(number(library)?, name);
    }
    let numbers = rest.split(' ').map(number).collect::<Result<Vec<_>, _>>()?;
    match (command, numbers.as_slice()) {
        ("map", &[at, size, pid, fd]) => map(at, size, pid, fd),
        ("unmap", &[at, size]) => {
            // SAFETY: the host unmaps what it had mapped; a kernel that still uses it faults, as on a device.
            let failed = unsafe { munmap(at as *mut c_void, size) } != 0;
            if failed { Err(last_error("munmap")) } else { Ok(0) }
        }
        ("unload", &[library]) => {
            // SAFETY: a handle that `load` returned.
            unsafe { dlclose(library as *mut c_void) };
            Ok(0)
        }
        ("run", &[function, blocks, pid, fd, ref words @ ..]) => run(function, blocks, pid, fd, words),
        _ => Err(format!("unknown command {line:?}")),
    }
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

fn open(pid: usize, fd: usize, reads: bool) -> Result<File, String> {
    let path = format!("/proc/{pid}/fd/{fd}");
    File::options().read(reads).write(true).open(&path).map_err(|error| format!("{path}: {error}"))
}

fn map(at: usize, size: usize, pid: usize, fd: usize) -> Result<usize, String> {
    let memory = open(pid, fd, true)?;
    // SAFETY: replaces no existing mapping; the descriptor may be closed afterwards.
    let mapped =
        unsafe { mmap(at as *mut c_void, size, READ_AND_WRITE, SHARED_HERE, memory.as_raw_fd(), 0) };
    if mapped as usize == at { Ok(0) } else { Err(last_error("mmap")) }
}

fn load(path: &str) -> Result<usize, String> {
    let path = CString::new(path).map_err(|_| "a NUL in the path")?;
    // SAFETY: the path ends in NUL. Constructors of a kernel run as they would anywhere.
    let library = unsafe { dlopen(path.as_ptr(), NOW) };
    if library.is_null() { Err(loader_error()) } else { Ok(library as usize) }
}

fn find(library: usize, name: &str) -> Result<usize, String> {
    let name = CString::new(name).map_err(|_| "a NUL in the name")?;
    // SAFETY: a handle that `load` returned; the name ends in NUL.
    let function = unsafe { dlsym(library as *mut c_void, name.as_ptr()) };
    if function.is_null() { Err(loader_error()) } else { Ok(function as usize) }
}

fn run(function: usize, blocks: usize, pid: usize, fd: usize, words: &[usize]) -> Result<usize, String> {
    if words.len() > PARAMETERS {
        return Err(format!("more than {PARAMETERS} parameters"));
    }
    let mut parameters = [0; PARAMETERS];
    for (parameter, word) in parameters.iter_mut().zip(words) {
        *parameter = *word as u64;
    }
    let mut done = open(pid, fd, false)?;
    let thread = std::thread::Builder::new().spawn(move || {
        let next = AtomicUsize::new(0);
        std::thread::scope(|cores| {
            for _ in 1..blocks.min(CORES) {
                let core = std::thread::Builder::new().spawn_scoped(cores, || run_blocks(function, blocks, &next, parameters));
                // With fewer cores than the device has, blocks that wait for each other would wait for ever.
                core.unwrap_or_else(|_| std::process::abort());
            }
            run_blocks(function, blocks, &next, parameters);
        });
        // SAFETY: null stands for all streams. What the kernel printed belongs to the time before its end.
        unsafe { fflush(std::ptr::null_mut()) };
        let _ = done.write_all(&[1]);
    });
    thread.map(|_| 0).map_err(|error| error.to_string())
}

/// A core: takes one block after the other until none is left.
fn run_blocks(function: usize, blocks: usize, next: &AtomicUsize, [a, b, c, d, e, f]: [u64; PARAMETERS]) {
    // SAFETY: an address that `find` returned.
    let kernel = unsafe { std::mem::transmute::<usize, Kernel>(function) };
    loop {
        // Only the count matters: what blocks share is their own business, and their end is a join.
        let block = next.fetch_add(1, Ordering::Relaxed);
        if block >= blocks {
            return;
        }
        BLOCK.set(block as i64);
        // The kernel's parameters are words. It may leave words unread.
        kernel(a, b, c, d, e, f);
    }
}

fn loader_error() -> String {
    // SAFETY: returns null or a text of this thread that is valid until its next dl call.
    let text = unsafe { dlerror() };
    if text.is_null() {
        return "the loader failed".to_owned();
    }
    // SAFETY: not null, and just returned.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn last_error(call: &str) -> String {
    format!("{call}: {}", std::io::Error::last_os_error())
}
