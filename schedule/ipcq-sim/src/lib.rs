//! Times collectives between processing elements (PEs), link by link, beside the lower bound.
//!
//! A schedule of `ccl-schedule` is put on a topology of SIPs, cubes and PEs (or on a wire per channel), and
//! run: each PE has queues with slots, a send moves its token over the links of a path, a recv waits, reads
//! the slot and returns a credit. The result is the finish time of every rank, the use of every link, and a
//! bound that no schedule can beat. The data itself can be carried along: every movement is logged and
//! replayed on real f16, bf16 or f32 memory.
//!
//! ```
//! use ipcq_sim::config::{Settings, Topology};
//! use ipcq_sim::engine::Engine;
//! use ipcq_sim::probe::NoProbe;
//! use ipcq_sim::sim::{Simulation, build};
//!
//! let topology = Topology::default(); // 2 SIPs x 4x4 cubes x 8 PEs
//! let settings = Settings { algorithm: "tree_allreduce".into(), world_size: Some(64), ..Settings::default() };
//! let program = build(&settings, &topology)?;
//! let simulation = Simulation::new(&*program, &topology, &settings)?;
//! simulation.prove()?;
//! let outcome = simulation.time(Engine::Auto, &mut NoProbe)?;
//! assert!(outcome.report.time_ps >= outcome.report.lower_bound_ps);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Timing rules
//! Times are integer picoseconds, bandwidths fractions; a transfer time rounds up to the next picosecond.
//! 1. A *send* waits until fewer than `n_slots` tokens of its queue are out (woken, or polling every poll
//!    interval), then issues and returns at once. A tile is captured at issue. A held slot is read once more,
//!    by the DMA engine.
//! 2. *Hop* i of the path: start = max(head + overhead, link free at); link free at = start + bytes /
//!    bandwidth; the head moves on at start + propagation. Each direction of a wire is a link of its own.
//! 3. A token is *visible* when its slowest hop has drained and the rest of the path is done, plus the write
//!    into the slot memory: data, metadata and queue head in one step, in order per queue.
//! 4. A *recv* waits for visible, reads the slot, and lands it (copy, add, or hold to forward). The credit
//!    leaves at the recv, after the read, or after the last use; it takes its bytes over the bottleneck, or
//!    the whole path; the recv waits for it or not. Credits use no data link.
//! 5. *Math* takes setup + bytes / rate. All PEs start together unless a skew is given.
//!
//! Worked example, with the built-in topology: PE 7 (cube 0) sends 1024 bytes to PE 8 (cube 1), which adds
//! them.
//!
//! | part | ps |
//! |---|---|
//! | PE CPU 2 ns + scheduler 1 ns, before the PE's outgoing link | 3 000 |
//! | crossbar 2 ns + UCIe port 8 ns out + 8 ns in, before the UCIe link | 18 000 |
//! | crossbar 2 ns, before PE 8's incoming link | 2 000 |
//! | propagation 2 + 10 + 2 mm at 10 ps/mm | 140 |
//! | drain: 1024 bytes at 128 GB/s, the slowest of 256, 128, 256 | 8 000 |
//! | slot write: 1024 bytes into TCM at 512 GB/s | 2 000 |
//! | **visible** | **33 140** |
//! | slot read 2 000, addition 2 000 | 4 000 |
//! | **PE 8 is done** | **37 140** |
//!
//! # The lower bound of a ring
//! The bandwidth-optimal ring of n ranks takes 2(n − 1) rounds, and every round costs the latency of a wire.
//! On 4096 ranks with a wire of 128 GB/s per channel:
//!
//! | per rank | chunk | messages | time | port | latency | ring | of the bound |
//! |---|---|---|---|---|---|---|---|
//! | 1 MiB | 256 bytes | 256 bytes | 52.0 µs | 16.4 µs | 25.0 µs | 50.0 µs | 96 % |
//! | 4 GiB | 1 MiB | 4 x 256 KiB | 67.1 ms | 67.1 ms | 12.6 ms | 25.2 ms | over 99.9 % |
//!
//! With 1 MiB per rank latency decides: a round takes 6.35 ns on average, and only 2 ns of them drain the
//! chunk. The plain latency bound counts the n − 1 wires between the two ranks that are the farthest apart,
//! and half of the time is missing from it. The *ring* bound finds the other half: a schedule that sends a
//! chunk fewer than two times per wire, as the port bound requires, sends it over some wire only once; that
//! one message holds a contribution that has crossed n − 2 wires, and its result crosses n − 2 more
//! ([`bound::Bounds::ring`]). It holds for schedules that send no more messages than this one. A schedule
//! that sends more may be faster here, because bandwidth is left over.
//!
//! Each bound covers the schedules that its argument is about, and the largest counts. So the bound of an
//! algorithm can fall when its wiring changes. `hierarchical` is one ring up to the 8 PEs of a cube, where
//! the ring bound covers it; from 16 ranks on its rings are joined to others, which the argument does not
//! cover. With 1 MiB per rank the bound falls from 13.4 µs (ring) to 8.2 µs (cut) there, while the time grows
//! from 16.2 to 17.1 µs: no error, but a bound that is farther from the time. The picture of a sweep marks
//! where the reason of a bound changes.
//!
//! With chunks of 1 MiB, cut in four so that sending, receiving and adding overlap, the port decides and the
//! ring reaches it; with unsplit messages of 1 MiB it reaches 61.5 %. `cargo xtask bench ipcq` requires 95 %
//! for both lines.
//!
//! # Contract
//! - **IQ-1** Where no two channels share a link (except the outgoing link of one PE), engines A and B
//!   compute the same times for every rank.
//! - **IQ-2** An uncontended token takes propagation + overheads + bytes / bottleneck, plus slot write and
//!   read.
//! - **IQ-3** The same input gives the same times and the same hash, on every run and machine.
//! - **IQ-4** Engine B processes events in the order (time, PE, number of the token); nothing depends on
//!   addresses or threads.
//! - **IQ-5** No run is faster than its lower bound.
//! - **IQ-6** Slot memories differ by exactly setup + bytes / bandwidth + bytes / bank, once per write and
//!   once per read.
//! - **IQ-7** Replay of the log gives the same bytes as direct execution, or names a slot that was used after
//!   its credit.
//! - **IQ-8** Bad input is one sentence with file, key and value; nothing is written and the exit code is 2.
//!
//! IQ-9 and IQ-10 are promises of [`kernel`].
//!
//! # The memory of a machine
//! With `fabric: memory` ranks are processes that read each other's windows. A send is a signal, which takes as long as another core
//! needs to see a store; where the data is not in the window yet it is first copied there. A recv reads the sender's tile in place:
//! it copies it, or adds it to what this rank has. Moves to and from scratch tiles are part of the sum that they belong to. The rates
//! depend on how much data a rank has in all, because that decides which cache it comes from; [`calibrate`] measures them.
//! What it leaves out: who writes to a tile that was lent waits for its readers, and ranks that share a core do so evenly.
//! `cargo coll_perf --predict` compares the times with those of real groups.
//!
//! # Compute traffic
//! A link may be shared with traffic that is not the collective's: as a share of its bandwidth (`load` in `topology.yaml`), or
//! as flows of messages between PEs (`traffic` in `ccl.yaml`), which engine B queues on the links in the order of time.
//!
//! # What it does not model
//! HBM refresh and efficiency, packet headers, retransmission, routing
//! around a busy link, finite buffers inside the network (a token waits at a link without blocking the link
//! before it), contention of slot memory between queues, and the host's launch of the kernels.
//! `vc_chunk_size` is read and not used. The bounds hold for the channels, the chunk size and the number of
//! messages of the schedule, not for every possible wiring.

#![forbid(unsafe_code)]

pub mod bound;
pub mod calibrate;
#[cfg(feature = "cli")]
pub mod cli;
pub mod config;
pub mod data;
pub mod dist;
pub mod engine;
pub mod kernbench;
pub mod kernel;
pub mod memory;
pub mod net;
pub mod oplog;
pub mod out;
pub mod placement;
pub mod plan;
pub mod probe;
pub mod schedule_file;
pub mod sim;
pub mod stats;
pub mod units;
