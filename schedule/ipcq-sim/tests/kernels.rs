//! Kernels written as code: the same schedules as the library's, and a sentence for every mistake.

use ccl_schedule::algo::{MeshAllReduce, RingAccumulate, TreeAllReduce};
use ccl_schedule::{Dir, Goal, Program};
use ipcq_sim::config::{CreditAt, DType, Fabric, Settings, Topology};
use ipcq_sim::data;
use ipcq_sim::engine::Engine;
use ipcq_sim::kernel::{Kernel, KernelFault, KernelProgram, MAX_STEPS, Pe, Space, ceil_div};
use ipcq_sim::probe::NoProbe;
use ipcq_sim::sim::Simulation;
use proptest::prelude::*;
use std::cell::RefCell;

fn ring(pe: &Pe) {
    let mine = pe.tensor();
    let mut sum = pe.load(&mine);
    if pe.ranks() > 1 {
        pe.send(Dir::E, &mine);
    }
    for round in 1..pe.ranks() {
        let tile = pe.recv(Dir::W, mine.shape(), mine.dtype());
        sum += &tile;
        if round + 1 < pe.ranks() {
            pe.send(Dir::E, &tile);
        }
    }
    pe.store(&mine, &sum);
}

/// A ring along every row, then one of the row sums along every column.
fn mesh(width: u32, height: u32) -> impl Fn(&Pe) {
    move |pe| {
        let mine = pe.tensor();
        let mut sum = pe.load(&mine);
        for (size, out, back) in [(width, Dir::E, Dir::W), (height, Dir::S, Dir::N)] {
            if size > 1 {
                pe.send(out, &mine);
            }
            for round in 1..size {
                let tile = pe.recv(back, mine.shape(), mine.dtype());
                sum += &tile;
                if round + 1 < size {
                    pe.send(out, &tile);
                }
            }
            // The row sum travels along the column; at the end it is the result.
            pe.store(&mine, &sum);
        }
    }
}

fn tree(pe: &Pe) {
    let mut sum = pe.tensor();
    let children = (pe.ranks() - 1).saturating_sub(2 * pe.rank()).min(2) as usize;
    let children = &[Dir::CHILD_LEFT, Dir::CHILD_RIGHT][..children];
    for child in children {
        pe.recv_add(*child, &mut sum);
    }
    if pe.rank() > 0 {
        pe.send(Dir::PARENT, &sum);
        pe.recv_into(Dir::PARENT, &sum);
    }
    children.iter().for_each(|child| pe.send(*child, &sum));
}

fn direct() -> Topology {
    Topology { fabric: Fabric::Direct, ..Topology::default() }
}

fn start(ranks: u32, len: usize) -> Vec<Vec<f32>> {
    (1..=ranks).map(|rank| (0..len).map(|i| (rank * 3 + i as u32 % 5) as f32 * 0.25).collect()).collect()
}

/// Times of all ranks, hash and data of a library schedule.
fn library(program: &dyn Program, topology: &Topology, settings: &Settings) -> (Vec<u64>, Vec<Vec<u8>>) {
    let simulation = Simulation::new(program, topology, settings).unwrap();
    let mut memory = simulation.memory();
    for (rank, values) in (0..).zip(start(program.ranks(), settings.n_elem as usize)) {
        memory.tensor_mut(rank).copy_from_slice(&data::encode(settings.dtype, &values));
    }
    let (outcome, memory) = simulation.time_with_data(Engine::Auto, memory, None, &mut NoProbe).unwrap();
    (outcome.timing.finish, (0..program.ranks()).map(|rank| memory.tensor(rank).to_vec()).collect())
}

fn kernel(program: &KernelProgram, topology: &Topology, settings: &Settings) -> (Vec<u64>, Vec<Vec<u8>>) {
    program.prove(settings).unwrap();
    let run = program
        .run(topology, settings, Engine::Auto, &start(program.ranks(), settings.n_elem as usize))
        .unwrap();
    (run.outcome.timing.finish, (0..program.ranks()).map(|rank| run.memory.tensor(rank).to_vec()).collect())
}

#[test]
fn iq_9_ring_mesh_and_tree_as_code_are_those_of_the_library() {
    for topology in [direct(), Topology::default()] {
        for (n_elem, dtype) in [(1, DType::F16), (40, DType::Bf16), (128, DType::F32)] {
            let base = Settings { n_elem, dtype, ..Settings::default() };
            let new = |name, ranks| Kernel::new(name, ranks, &[n_elem], dtype);
            for ranks in [1, 2, 3, 8, 16] {
                let program = new("ring", ranks).record(ring).unwrap();
                let settings = program.settings(&base);
                let theirs = library(&RingAccumulate::new(ranks).unwrap(), &topology, &settings);
                assert_eq!(kernel(&program, &topology, &settings), theirs, "ring of {ranks}");

                let program = new("tree", ranks).on_tree().record(tree).unwrap();
                let theirs = library(&TreeAllReduce::new(ranks, 1).unwrap(), &topology, &settings);
                assert_eq!(kernel(&program, &topology, &settings), theirs, "tree of {ranks}");
            }
            for (w, h) in [(2, 2), (4, 2), (3, 1)] {
                let program = new("mesh", w * h).on_mesh(w, h).record(mesh(w, h)).unwrap();
                let settings = program.settings(&base);
                let mine = kernel(&program, &topology, &settings);
                let theirs = library(&MeshAllReduce::new(w * h, Some((w, h))).unwrap(), &topology, &settings);
                assert_eq!(mine, theirs, "mesh of {w} x {h}");
            }
        }
    }
}

#[test]
fn computations_spaces_and_posted_receives_do_what_they_say() {
    let body = |pe: &Pe| {
        let x = pe.tensor();
        let other = pe.memory(Space::Hbm, 0, &[2, 4], DType::F32);
        let y = pe.load(&other);
        let future = pe.recv_async(Dir::W, &[2, 4], DType::F32);
        pe.send(Dir::E, &y);
        let z = pe.wait(future);
        let a = &(&(&x + &y) * 2.0) - &z;
        let b = a.maximum(&y).minimum(&(&x / 0.5));
        let c = b.fma(&x, &y).clamp(-3.0, 30.0);
        pe.store(&x, &c.ceil_div(&(&y - -1.0)));
        pe.store(&pe.memory(Space::Sram, 64, &[2, 4], DType::F32), &b.softmax());
    };
    let program = Kernel::new("all_functions", 3, &[2, 4], DType::F32).goal(Goal::Any).record(body).unwrap();
    let settings = program.settings(&Settings::default());
    program.prove(&settings).unwrap();
    let mut memory = program.memory();
    let x = |rank: u32| (0..8).map(|i| rank as f32 + i as f32 * 0.5).collect::<Vec<_>>();
    let y = |rank: u32| (0..8).map(|i| 3.0 - rank as f32 * 0.25 + i as f32 * 0.125).collect::<Vec<_>>();
    for rank in 0..3 {
        memory.tensor_mut(rank).copy_from_slice(&data::encode(DType::F32, &x(rank)));
        assert!(memory.fill(rank, Space::Hbm, 0, DType::F32, &y(rank)));
        assert!(!memory.fill(rank, Space::Hbm, 1 << 20, DType::F32, &y(rank)));
    }
    let run = program.run_on(&Topology::default(), &settings, Engine::Auto, memory).unwrap();
    for rank in 0..3 {
        let (x, y, z) = (x(rank), y(rank), y((rank + 2) % 3));
        let b: Vec<f32> = (0..8).map(|i| ((x[i] + y[i]) * 2.0 - z[i]).max(y[i]).min(x[i] / 0.5)).collect();
        let want: Vec<f32> =
            (0..8).map(|i| (b[i].mul_add(x[i], y[i]).clamp(-3.0, 30.0) / (y[i] + 1.0)).ceil()).collect();
        assert_eq!(run.values(rank), want);
        let softmax = run.read(rank, Space::Sram, 64, DType::F32, 8).unwrap();
        for (row, b) in softmax.chunks(4).zip(b.chunks(4)) {
            let sum: f32 = b.iter().map(|b| b.exp()).sum();
            for (got, b) in row.iter().zip(b) {
                assert!((got - b.exp() / sum).abs() < 1e-5, "{got}");
            }
        }
    }
    assert_eq!(ceil_div(7, 2), 4);
}

/// Memory that is farther away, and softmax, take longer.
#[test]
fn iq_9_kernels_are_timed_with_the_costs_of_the_topology() {
    let time = |space: Space, softmax: bool| {
        let program = Kernel::new("local", 1, &[1024], DType::F16).tensor_in(space).goal(Goal::Any);
        let program = program.record(|pe| {
            let x = pe.load(&pe.tensor());
            pe.store(&pe.tensor(), &if softmax { x.softmax() } else { &x + &x });
        });
        let program = program.unwrap();
        let settings = program.settings(&Settings::default());
        let run = program.run(&Topology::default(), &settings, Engine::Auto, &[vec![1.0; 1024]]).unwrap();
        run.outcome.report.time_ps
    };
    // 2048 bytes: copies and the sum take 4 ns each at 512 GB/s.
    assert_eq!(time(Space::Tcm, false), 12_000);
    assert_eq!(time(Space::Tcm, true), 20_000);
    // HBM, twice: 6 ns, 8 ns at 256 GB/s, and 8 ns to the bank.
    assert_eq!(time(Space::Hbm, false), 12_000 + 2 * 22_000);
}

/// The error of a kernel, which must name its line: the lines of kernels here carry a comment for that.
fn mistake(kernel: Kernel, body: impl Fn(&Pe)) -> String {
    let base = Settings { n_slots: 1, ..Settings::default() };
    let error = match kernel.record(body) {
        Err(error) => error,
        Ok(program) => {
            let settings = program.settings(&base);
            match program.prove(&settings) {
                Err(error) => error,
                Ok(_) => {
                    let start = start(program.ranks(), settings.n_elem as usize);
                    program.run(&direct(), &settings, Engine::Auto, &start).map(|_| ()).unwrap_err()
                }
            }
        }
    };
    error.to_string()
}

#[test]
fn iq_10_a_mistake_is_a_sentence_that_names_kernel_line_and_rank() {
    let new = |name: &str| Kernel::new(name, 4, &[8], DType::F16);
    let any = |name: &str| new(name).goal(Goal::Any);
    let line = |text: &str| {
        text.split("kernels.rs:").nth(1).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let of_rank_0 = RefCell::new(None);
    let cases: Vec<(String, &[&str])> = vec![
        (
            mistake(new("shapes"), |pe| {
                let _ = &pe.tensor() + &pe.recv(Dir::W, &[4], DType::F16);
            }),
            &[
                "kernel shapes",
                "rank 0",
                "add of [8] f16 and [4] f16; both must have one shape and one format",
            ],
        ),
        (
            mistake(new("form"), |pe| {
                pe.send(Dir::E, &pe.tensor());
                let tile = pe.recv(Dir::W, &[8], DType::F32);
                let _ = &tile + &tile;
            }),
            &[
                "kernel form",
                "rank 0",
                "receives [8] f32 from W",
                "rank 3 sends [8] f16",
                "; let both name one shape and format",
            ],
        ),
        (
            mistake(any("nobody"), |pe| {
                if pe.rank() != 1 {
                    pe.send(Dir::E, &pe.tensor());
                }
                pe.recv_into(Dir::W, &pe.tensor());
            }),
            &["kernel nobody", "rank 2", "time, but rank 1 sends only 0 times: nobody sends this one"],
        ),
        (
            mistake(any("left_over"), |pe| pe.send(Dir::E, &pe.tensor())),
            &["kernel left_over", "rank 0", "time, but rank 1 receives only 0 times; receive it there"],
        ),
        (
            mistake(any("nowhere"), |pe| pe.send(Dir::N, &pe.tensor())),
            &["direction N has no peer here; use one of its queues"],
        ),
        (
            mistake(any("in_use"), |pe| {
                pe.send(Dir::E, &pe.tensor());
                pe.send(Dir::E, &pe.tensor());
                let a = pe.recv(Dir::W, &[8], DType::F16);
                let b = pe.recv(Dir::W, &[8], DType::F16);
                let _ = &a + &b;
            }),
            &[
                "kernel in_use",
                "receives from W while the slot",
                "; copy it first, or receive into a tensor of your own",
            ],
        ),
        (
            mistake(new("deadlock"), |pe| {
                let tile = pe.recv(Dir::W, &[8], DType::F16);
                pe.send(Dir::E, &pe.tensor());
                let _ = &tile + &tile;
            }),
            &["kernel deadlock", "deadlock with n_slots = 1", "rank 0 in recv(W", "no n_slots helps"],
        ),
        (
            mistake(new("lost"), |pe| {
                let mut sum = pe.tensor();
                if pe.rank() == 0 {
                    pe.send(Dir::E, &sum);
                }
                if pe.rank() == 1 {
                    pe.recv_add(Dir::W, &mut sum);
                }
            }),
            &["kernel lost", "rank 0 ends with a wrong chunk 0", "missing rank 1, 2, 3"],
        ),
        (
            mistake(new("product"), |pe| pe.store(&pe.tensor(), &(&pe.tensor() * 2.0))),
            &[
                "kernel product",
                "rank 0",
                "mul does not add up contributions, so that nothing can be proved about them; with the goal `any` the schedule is checked for deadlock only",
            ],
        ),
        (
            mistake(any("overflow"), |pe| pe.store(&pe.tensor(), &(&pe.tensor() * 60_000.0))),
            &[
                "kernel overflow",
                "rank 0",
                "mul exceeds the largest f16 (65504); use bf16 or f32, or smaller values",
            ],
        ),
        (
            mistake(any("full").scratch(100), |pe| {
                let a = pe.load(&pe.tensor());
                let _ = &a + &a;
            }),
            &[
                "kernel full",
                "a result of 16 bytes does not fit",
                "drop tensors that are no longer needed, or give the kernel more with `scratch`",
            ],
        ),
        (
            mistake(any("cuts"), |pe| {
                let _ = &pe.tensor().chunk(0, 2) + &pe.tensor().chunk(0, 2);
                let _ = pe.load(&pe.tensor().chunk(0, 4));
            }),
            &["kernel cuts", "cuts the tensor into 4 chunks, and elsewhere into 2"],
        ),
        (
            mistake(any("whole"), |pe| {
                let _ = pe.load(&pe.tensor().chunk(0, 2));
                pe.store(&pe.tensor(), &pe.load(&pe.tensor()));
            }),
            &["kernel whole", "uses the whole tensor, which is cut into 2 chunks"],
        ),
        (
            mistake(any("chunk"), |pe| drop(pe.tensor().chunk(3, 2))),
            &["chunk 3 of 2 does not exist; count from 0"],
        ),
        (
            mistake(any("posted"), |pe| {
                pe.send(Dir::E, &pe.tensor());
                let _never = pe.recv_async(Dir::W, &[8], DType::F16);
            }),
            &["kernel posted", "posts a receive from W and never waits for it; call wait on it"],
        ),
        (
            mistake(any("posted_twice"), |pe| {
                let first = pe.recv_async(Dir::W, &[8], DType::F16);
                pe.recv_into(Dir::W, &pe.tensor());
                pe.wait(first);
            }),
            &[
                "kernel posted_twice",
                "rank 0",
                "receives from W, where a receive is posted already (",
                "); wait for that one first",
            ],
        ),
        (
            mistake(any("slot"), |pe| {
                pe.send(Dir::E, &pe.tensor());
                pe.store(&pe.recv(Dir::W, &[8], DType::F16), &pe.tensor());
            }),
            &["kernel slot", "rank 0", "writes to a slot of the queue; copy it first"],
        ),
        (
            mistake(any("foreign"), |pe| {
                if let Some(tensor) = of_rank_0.replace(Some(pe.tensor())) {
                    pe.send(Dir::E, &tensor);
                }
            }),
            &["kernel foreign", "rank 1", "uses a tensor of another rank; have it sent"],
        ),
        (
            mistake(any("overlap"), |pe| drop(pe.memory(Space::Tcm, 8, &[8], DType::F16))),
            &[
                "kernel overlap",
                "tcm address 8 lies inside the tensor or in the scratch memory, which ends at",
                "; choose one behind it",
            ],
        ),
        (
            mistake(new("host"), |pe| {
                let mut sum = pe.tensor();
                sum += &pe.memory(Space::Hbm, 0, &[8], DType::F16);
            }),
            &[
                "kernel host",
                "reads memory that the host filled, so that nothing can be proved about contributions; use the goal `any`",
            ],
        ),
    ];
    for (text, parts) in cases {
        for part in parts {
            assert!(text.contains(part), "{text}");
        }
        assert!(line(&text) || text.contains("wrong chunk"), "no line: {text}");
    }
}

#[test]
fn a_kernel_that_is_too_long_is_refused() {
    let text = mistake(Kernel::new("long", 1, &[1], DType::F16), |pe| {
        let tensor = pe.tensor();
        (0..=MAX_STEPS).for_each(|_| pe.store(&tensor, &tensor));
    });
    let said = format!("has more than {MAX_STEPS} operations on one rank; split it into several kernels");
    assert!(text.contains("kernel long") && text.contains(&said), "{text}");
}

/// Who runs a kernel as any other schedule learns the rank and step, as its lines are not known there.
#[test]
fn an_overflow_outside_of_a_run_of_the_kernel_names_rank_and_step() {
    let kernel = Kernel::new("doubled", 2, &[8], DType::F16).goal(Goal::Any);
    let program = kernel.record(|pe| pe.store(&pe.tensor(), &(&pe.tensor() * 2.0))).unwrap();
    let (topology, settings) = (direct(), program.settings(&Settings::default()));
    let simulation = Simulation::new(&program, &topology, &settings).unwrap();
    let mut memory = program.memory();
    memory.tensor_mut(1).copy_from_slice(&data::encode(DType::F16, &[60_000.0; 8]));
    let run = simulation.time_with_data(Engine::Auto, memory, None, &mut NoProbe);
    assert_eq!(
        run.map(|_| ()).unwrap_err().to_string(),
        "rank 1, step 0: the result exceeds the largest number of its format; use a larger format, or smaller values"
    );
}

/// A slot that is freed at the recv and used afterwards is overwritten, and the run says so.
#[test]
fn iq_9_use_after_credit_is_found_in_a_kernel() {
    let program = Kernel::new("early_credit", 8, &[4096], DType::F16).record(ring).unwrap();
    let mut topology = direct();
    topology.tcm.setup = 100_000;
    let base = Settings { slot_size: 1 << 20, n_slots: 1, credit_at: CreditAt::Recv, ..Settings::default() };
    let settings = program.settings(&base);
    let error = program.run(&topology, &settings, Engine::A, &start(8, 4096)).map(|_| ()).unwrap_err();
    assert!(matches!(*error.what, KernelFault::Simulation(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("kernel early_credit") && text.contains("use after credit"), "{text}");
    let small = Settings { slot_size: 100, ..settings };
    let error = program.run(&topology, &small, Engine::A, &start(8, 4096)).map(|_| ()).unwrap_err();
    assert!(
        error.to_string().contains("8192 bytes, but a slot holds 100; raise slot_size, or send less at once"),
        "{error}"
    );
}

/// One round of a random kernel: what every rank computes, then a message to the east.
#[derive(Clone, Debug)]
struct Round {
    function: u8,
    number: f32,
    /// Whether the message is received by a posted receive, into scratch memory, or out of the slot.
    how: u8,
    /// Ranks that skip the computation.
    skips: u32,
}

/// The same round on plain numbers of one rank.
fn compute(function: u8, x: f32, y: f32, number: f32) -> f32 {
    match function {
        0 => x + y,
        1 => x - y,
        2 => x * number,
        3 => x / number,
        4 => x.max(y),
        5 => x.min(y),
        6 => x.mul_add(number, y),
        7 => x.max(-number).min(number),
        _ => (x / number).ceil(),
    }
}

fn random_kernel(rounds: &[Round]) -> impl Fn(&Pe) {
    move |pe| {
        let tensor = pe.tensor();
        let (mut x, mut y) = (pe.load(&tensor), pe.load(&tensor));
        for round in rounds {
            if pe.rank() != round.skips {
                let number = &(&x * 0.0) + round.number;
                x = match round.function {
                    0 => &x + &y,
                    1 => &x - &y,
                    2 => &x * round.number,
                    3 => &x / round.number,
                    4 => x.maximum(&y),
                    5 => x.minimum(&y),
                    6 => x.fma(&number, &y),
                    7 => x.clamp(-round.number, round.number),
                    _ => x.ceil_div(&number),
                };
            }
            let posted = (round.how == 0).then(|| pe.recv_async(Dir::W, x.shape(), x.dtype()));
            pe.send(Dir::E, &x);
            y = match posted {
                Some(future) => pe.wait(future),
                None if round.how == 1 => {
                    let to = pe.load(&x);
                    pe.recv_into(Dir::W, &to);
                    to
                }
                None => {
                    let slot = pe.recv(Dir::W, x.shape(), x.dtype());
                    &slot + 0.0
                }
            };
        }
        pe.store(&tensor, &(&x + &y));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// IQ-9: random kernels end with the numbers of a direct interpreter, on both engines.
    #[test]
    fn iq_9_random_kernels_compute_what_a_direct_interpreter_does(
        ranks in 2u32..7,
        len in 1u64..20,
        rounds in prop::collection::vec(
            (0u8..9, 1u8..9, 0u8..3, 0u32..8)
                .prop_map(|(function, n, how, skips)| Round { function, number: f32::from(n) * 0.5, how, skips }),
            0..6,
        ),
        shared in any::<bool>(),
    ) {
        let start = start(ranks, len as usize);
        let (mut x, mut y) = (start.clone(), start.clone());
        for round in &rounds {
            for rank in (0..ranks as usize).filter(|rank| *rank as u32 != round.skips) {
                let pairs = x[rank].iter().zip(&y[rank]);
                x[rank] = pairs.map(|(x, y)| compute(round.function, *x, *y, round.number)).collect();
            }
            y = (0..ranks as usize).map(|rank| x[(rank + ranks as usize - 1) % ranks as usize].clone()).collect();
        }
        let program = Kernel::new("random", ranks, &[len], DType::F32).goal(Goal::Any);
        let program = program.record(random_kernel(&rounds)).unwrap();
        let settings = program.settings(&Settings::default());
        program.prove(&settings).unwrap();
        let topology = if shared { Topology::default() } else { direct() };
        let run = program.run(&topology, &settings, Engine::Auto, &start).unwrap();
        for rank in 0..ranks {
            let pairs = x[rank as usize].iter().zip(&y[rank as usize]);
            prop_assert_eq!(run.values(rank), pairs.map(|(x, y)| x + y).collect::<Vec<f32>>());
        }
    }
}

#[test]
fn the_guide_shows_the_kernel_of_the_example() {
    let (guide, example) =
        (include_str!("../../../docs/guide-pe-kernels.md"), include_str!("../examples/kernel_ring.rs"));
    let start = example.find("fn ring").unwrap();
    let end = start + example[start..].find("\n}\n").unwrap() + 3;
    assert!(guide.contains(&example[start..end]));
}

#[test]
fn the_guide_shows_the_text_of_a_mistake() {
    let line = line!() + 4;
    // As far apart as in the example, with another number format.
    let wrong = |pe: &Pe| {
        let mine = pe.tensor();
        pe.send(Dir::E, &mine);
        let format = DType::F32;
        let tile = pe.recv(Dir::W, mine.shape(), format);
        let _ = &tile + &tile;
    };
    let error = Kernel::new("ring", 64, &[32], DType::F16).record(wrong).unwrap_err().to_string();
    let in_example = |text: String, at: u32| {
        text.replace(&format!("kernels.rs:{}", line + at), &format!("kernel_ring.rs:{}", 15 + at))
    };
    let text = in_example(in_example(error, 0), 2);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let guide = words(include_str!("../../../docs/guide-pe-kernels.md"));
    assert!(guide.contains(&words(&text)), "{text}");
    let example: Vec<&str> = include_str!("../examples/kernel_ring.rs").lines().collect();
    assert!(example[14].contains("pe.send(") && example[16].contains("pe.recv("));
}
