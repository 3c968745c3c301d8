//! Random graphs against the same tasks run one after the other.
//!
//! `RANDOM_GRAPHS` and `RANDOM_TASKS` say how many graphs of at most how many tasks; small without them.

mod common;

use chip_runtime::{
    Block, Buffer, Compare, Create, FrontEnd, Graph, KernelId, KernelResult, Kernels, Limits, Predicate,
    Runtime, RuntimeError, ScopeMode, TaskArgs, TaskId, Tensor,
};
use common::soon;

fn amount(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A step of an orchestration.
#[derive(Clone, Debug)]
enum Step {
    Open,
    Close,
    Task(Task),
}

/// A range of a tensor; tensors have numbers, first those that outlive the graph.
#[derive(Clone, Copy, Debug)]
struct View {
    tensor: usize,
    start: u32,
    len: u32,
}

#[derive(Clone, Debug)]
struct Task {
    inputs: Vec<View>,
    /// What it changes, and whether it reads it first.
    changes: Option<(View, bool)>,
    /// The length of the tensor that it makes.
    makes: Option<u32>,
    blocks: u32,
    sync_start: bool,
    lanes: u8,
    /// Runs if this element is at least the number, as a signed one.
    predicate: Option<(View, i64)>,
    seed: u64,
}

const LASTING: usize = 4;
const LASTING_LEN: u32 = 48;
/// The longest new tensor: a unit of the heap.
const LONGEST: u64 = 128;

/// A plan that fits into rings of so many slots.
fn plan(random: &mut Random, tasks: u64, slots: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    // The lengths of all tensors, and for each open scope those that live in it and how many tasks it has.
    let mut lens = vec![LASTING_LEN; LASTING];
    let mut scopes: Vec<(Vec<usize>, usize)> = vec![((0..LASTING).collect(), 0)];
    let mut left = tasks;
    while left > 0 {
        let depth = scopes.len() - 1;
        // All scopes from depth 3 on share a ring.
        let used: usize =
            if depth < 3 { scopes[depth].1 } else { scopes[3..].iter().map(|scope| scope.1).sum() };
        let full = used + 1 >= slots;
        if depth > 0 && (full || random.one_in(12)) {
            let closed = scopes.pop().unwrap().1;
            if depth > 3 {
                // They stand behind those of the scope around it in the ring that both use.
                scopes[depth - 1].1 += closed;
            }
            steps.push(Step::Close);
            continue;
        }
        if depth < 6 && (full || random.one_in(10)) {
            scopes.push((Vec::new(), 0));
            steps.push(Step::Open);
            continue;
        }
        left -= 1;
        let known: Vec<usize> = scopes.iter().flat_map(|(tensors, _)| tensors).copied().collect();
        let view = |random: &mut Random| {
            // Mostly new tensors and those that last.
            let at = if random.one_in(3) {
                random.below(LASTING as u64) as usize
            } else {
                random.below(known.len() as u64) as usize
            };
            let tensor = known[at];
            let start = random.below(u64::from(lens[tensor])) as u32;
            let len = 1 + random.below(u64::from(lens[tensor] - start)) as u32;
            View { tensor, start, len }
        };
        let changes = (!random.one_in(3)).then(|| (view(random), random.one_in(2)));
        let inputs = (0..random.below(4)).map(|_| view(random));
        // What it changes is not also an input: blocks would race.
        let inputs: Vec<View> =
            inputs.filter(|input| changes.is_none_or(|(change, _)| change.tensor != input.tensor)).collect();
        let makes = random.one_in(2).then(|| 1 + random.below(LONGEST) as u32);
        let predicate = random.one_in(8).then(|| (view(random), random.below(1 << 40) as i64 - (1 << 39)));
        // A tensor that a task makes and does not fill is undefined, so that such a task always runs.
        let predicate = predicate.filter(|_| makes.is_none());
        let blocks = if random.one_in(3) { 1 + random.below(5) as u32 } else { 1 };
        let sync_start = blocks <= 2 && random.one_in(4);
        let lanes = 1 + random.below(7) as u8;
        let scope = scopes.last_mut().unwrap();
        scope.1 += 1;
        if let Some(len) = makes {
            scope.0.push(lens.len());
            lens.push(len);
        }
        steps.push(Step::Task(Task {
            inputs,
            changes,
            makes,
            blocks,
            sync_start,
            lanes,
            predicate,
            seed: random.below(u64::MAX >> 33),
        }));
    }
    steps.extend(std::iter::repeat_n(Step::Close, scopes.len() - 1));
    steps
}

/// What a task makes of its inputs at one place.
fn value(seed: u64, inputs: &[Vec<i64>], old: i64, at: usize) -> i64 {
    let mut sum = (seed as i64).wrapping_mul(at as i64 + 1).wrapping_add(old.wrapping_mul(3));
    for input in inputs {
        sum = sum.wrapping_mul(31).wrapping_add(input[at % input.len()]);
    }
    sum ^ (sum >> 17)
}

/// The kernel: scalars are the seed, how many inputs there are, and bits: 1 changes, 2 reads what it changes, 4 makes. Lanes and
/// blocks share the elements.
fn kernel(block: &Block<'_>) -> KernelResult {
    let (seed, inputs, bits, lanes) =
        (block.scalar(0)?, block.scalar(1)? as usize, block.scalar(2)?, block.scalar(3)?);
    let read = (0..inputs).map(|index| block.read::<i64>(index)).collect::<Result<Vec<_>, _>>()?;
    // Which of the task's lanes this is; one alone may be on either vector core.
    let count = lanes.count_ones() as usize;
    let lane = if count == 1 { 0 } else { (lanes & ((1 << block.lane() as u64) - 1)).count_ones() as usize };
    let (part, parts) = (block.index() as usize * count + lane, block.count() as usize * count);
    let mut index = inputs;
    for (bit, old_bit) in [(1, 2), (4, 0)] {
        if bits & bit == 0 {
            continue;
        }
        let elements = block.elements::<i64>(index)?;
        index += 1;
        for at in (part..elements.len()).step_by(parts) {
            let mut old = [0];
            if bits & old_bit != 0 {
                elements.read(at, &mut old)?;
            }
            elements.write(at, &[value(seed ^ bit, &read, old[0], at)])?;
        }
    }
    Ok(())
}

/// One task after the other.
fn sequential(steps: &[Step]) -> Vec<Vec<i64>> {
    let mut tensors = vec![vec![0i64; LASTING_LEN as usize]; LASTING];
    for step in steps {
        let Step::Task(task) = step else { continue };
        let of = |view: &View| view.start as usize..(view.start + view.len) as usize;
        let holds = |(view, least): &(View, i64)| tensors[view.tensor][of(view)][0] >= *least;
        let runs = task.predicate.as_ref().is_none_or(holds);
        let inputs: Vec<Vec<i64>> =
            task.inputs.iter().map(|view| tensors[view.tensor][of(view)].to_vec()).collect();
        if let Some((view, reads)) = task.changes.as_ref().filter(|_| runs) {
            for at in 0..view.len as usize {
                let element = &mut tensors[view.tensor][view.start as usize + at];
                *element = value(task.seed ^ 1, &inputs, if *reads { *element } else { 0 }, at);
            }
        }
        if let Some(len) = task.makes {
            tensors.push((0..len as usize).map(|at| value(task.seed ^ 4, &inputs, 0, at)).collect());
        }
    }
    tensors.truncate(LASTING);
    tensors
}

/// For explicit edges: who touched what, from the oldest.
#[derive(Default)]
struct Touched(Vec<(View, bool, TaskId)>);

impl Touched {
    fn before(&self, view: &View, writes: bool) -> impl Iterator<Item = TaskId> {
        let meets = move |(other, wrote, _): &&(View, bool, TaskId)| {
            let apart = other.start + other.len <= view.start || view.start + view.len <= other.start;
            other.tensor == view.tensor && !apart && (writes || *wrote)
        };
        self.0.iter().filter(meets).map(|(_, _, task)| *task)
    }
}

fn submit(
    graph: &mut Graph<'_>,
    kernel: KernelId,
    task: &Task,
    tensors: &mut Vec<Tensor<i64>>,
    touched: &mut Touched,
) -> Result<(), RuntimeError> {
    let slice = |view: &View| tensors[view.tensor].range(view.start..view.start + view.len);
    let mut args = TaskArgs::new().blocks(task.blocks);
    let mut touches: Vec<(View, bool)> = Vec::new();
    for input in &task.inputs {
        args = args.input(&slice(input)?);
        touches.push((*input, false));
    }
    let mut bits = 0;
    if let Some((view, reads)) = &task.changes {
        args = if *reads { args.inout(&slice(view)?) } else { args.output_existing(&slice(view)?) };
        bits |= if *reads { 3 } else { 1 };
        touches.push((*view, true));
    }
    if let Some(len) = task.makes {
        args = args.output(Create::of::<i64>(&[len]));
        bits |= 4;
        touches.push((View { tensor: tensors.len(), start: 0, len }, true));
    }
    if let Some((view, least)) = &task.predicate {
        args = args.when(Predicate::new(&slice(view)?, &[0], Compare::Ge, *least));
        touches.push((*view, false));
    }
    if task.sync_start {
        args = args.sync_start();
    }
    args = args.scalar(task.seed).scalar(task.inputs.len() as u64).scalar(bits).scalar(u64::from(task.lanes));
    if graph.front_end() == FrontEnd::Explicit {
        for before in touches.iter().flat_map(|(view, writes)| touched.before(view, *writes)) {
            args = args.after(before);
        }
    }
    let lane = |bit: u8| (task.lanes & bit != 0).then_some(kernel);
    let kernels = Kernels { aic: lane(1), aiv0: lane(2), aiv1: lane(4) };
    let submitted = graph.submit(kernels, &args)?;
    // Otherwise a task of an inner scope would wait for one that starts when the outer scope closes.
    graph.publish(submitted.task)?;
    if task.makes.is_some() {
        tensors.push(submitted.tensor(0)?);
    }
    touched.0.extend(touches.into_iter().map(|(view, writes)| (view, writes, submitted.task)));
    Ok(())
}

/// Runs a plan and returns what lasts of it.
fn parallel(runtime: &mut Runtime, kernel: KernelId, front_end: FrontEnd, steps: &[Step]) -> Vec<Vec<i64>> {
    let mut lasting: Vec<Buffer<i64>> = (0..LASTING).map(|_| Buffer::zeroed(&[LASTING_LEN])).collect();
    runtime
        .run(front_end, soon(), |graph| {
            let imports = lasting.iter_mut().map(|buffer| graph.import(buffer));
            let mut tensors = imports.collect::<Result<Vec<_>, _>>()?;
            let mut touched = Touched::default();
            for step in steps {
                match step {
                    Step::Open => graph.scope_begin(ScopeMode::Auto)?,
                    Step::Close => graph.scope_end()?,
                    Step::Task(task) => submit(graph, kernel, task, &mut tensors, &mut touched)?,
                }
            }
            Ok(())
        })
        .unwrap();
    lasting.iter().map(|buffer| buffer.to_vec().unwrap()).collect()
}

/// CR-2, CR-6
#[test]
fn random_graphs_give_what_their_tasks_give_one_after_the_other() {
    compare(0..amount("RANDOM_GRAPHS", 12), amount("RANDOM_TASKS", 150));
}

#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn large_random_graphs_give_what_their_tasks_give_one_after_the_other() {
    compare(1000..1030, 2000);
}

fn compare(seeds: std::ops::Range<u64>, tasks: u64) {
    for seed in seeds {
        let mut random = Random(seed.wrapping_mul(0x9e3779b97f4a7c15) + 1);
        let slots = 4 + random.below(61) as usize;
        let tasks = 1 + random.below(tasks);
        let steps = plan(&mut random, tasks, slots);
        let expected = sequential(&steps);
        let clusters = 2 + random.below(3) as usize;
        // As much heap as the slots need if each makes the longest tensor, and some that wrapping round loses.
        let ring = Limits { clusters, slots, heap: (slots as u64 + 2) * 1024, ..Limits::default() };
        let whole = Limits { slots: tasks as usize, heap: tasks * 1024 + 1024, ..ring.clone() };
        for front_end in FrontEnd::ALL {
            let limits = if front_end == FrontEnd::Prebuilt { &whole } else { &ring };
            let mut runtime = Runtime::new(limits.clone()).unwrap();
            let kernel = runtime.kernel("mix", kernel);
            if seed % 2 == 1 {
                runtime.use_calling_thread();
            }
            // Twice: the second run finds what the first left.
            for run in 0..2 {
                let got = parallel(&mut runtime, kernel, front_end, &steps);
                assert_eq!(
                    got, expected,
                    "graph {seed}, {front_end:?}, run {run}, {tasks} tasks, {slots} slots"
                );
            }
        }
    }
}
