//! Random graphs against the same tasks run one after the other.
//!
//! `RANDOM_GRAPHS` and `RANDOM_TASKS` say how many graphs of at most how many tasks; small without them, 500 of at most 2,000
//! in the lane `slow`.

mod common;

use chip_runtime::{
    Block, Buffer, Compare, Create, FrontEnd, Graph, KernelId, KernelResult, Kernels, Limits, Predicate,
    Runtime, RuntimeError, ScopeMode, TaskArgs, TaskId, Tensor,
};
use common::soon;
use std::ops::Range;

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
    Open(ScopeMode),
    Close,
    Task(Task),
}

/// A range in each dimension of a tensor; tensors have numbers, first those that outlive the graph.
#[derive(Clone, Debug)]
struct View {
    tensor: usize,
    ranges: Vec<Range<u32>>,
    edges: Edges,
}

/// Where the edges of an access come from in front ends that infer them, if the scope lets them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edges {
    Inferred,
    /// The tensor is passed without dependencies.
    NoDep,
    /// The view has manual dependencies.
    Manual,
}

impl View {
    /// The places of its elements in a tensor of this shape, in row-major order.
    fn places(&self, shape: &[u32]) -> Vec<usize> {
        let mut all = vec![0];
        for (range, len) in self.ranges.iter().zip(shape) {
            let along = |row: usize| range.clone().map(move |at| row * *len as usize + at as usize);
            all = all.into_iter().flat_map(along).collect();
        }
        all
    }

    fn meets(&self, other: &Self) -> bool {
        let mut pairs = self.ranges.iter().zip(&other.ranges);
        pairs.all(|(one, other)| one.start < other.end && other.start < one.end)
    }

    fn covers(&self, other: &Self) -> bool {
        let mut pairs = self.ranges.iter().zip(&other.ranges);
        pairs.all(|(one, other)| one.start <= other.start && other.end <= one.end)
    }
}

/// A tensor that a task makes; with an initial value it reads what it made, and need not run.
#[derive(Clone, Debug)]
struct Made {
    shape: Vec<u32>,
    initial: Option<i64>,
}

#[derive(Clone, Debug)]
struct Task {
    inputs: Vec<View>,
    /// What it changes, and whether it reads it first.
    changes: Option<(View, bool)>,
    makes: Option<Made>,
    blocks: u32,
    sync_start: bool,
    lanes: u8,
    /// Runs if this element is at least the number, as a signed one.
    predicate: Option<(View, i64)>,
    seed: u64,
    /// The numbers of tasks that it comes after, and whether it must name them where edges are inferred.
    after: Vec<(usize, bool)>,
}

/// The shapes of the tensors that last.
const LASTING: [&[u32]; 4] = [&[48], &[48], &[6, 8], &[4, 3, 4]];
/// The most elements of a new tensor: a unit of the heap.
const LONGEST: u64 = 128;

/// Who touched what, by tensor: the view, whether it wrote, the number of the task, and whether the engine infers from it.
struct Touched(Vec<Vec<(View, bool, usize, bool)>>);

impl Touched {
    /// The task touches this: enters in `after` what it must come after.
    fn touch(
        &mut self,
        view: &View,
        writes: bool,
        task: usize,
        infers: bool,
        after: &mut Vec<(usize, bool)>,
    ) {
        let infers = infers && view.edges == Edges::Inferred;
        let known = &mut self.0[view.tensor];
        let conflicts = known
            .iter()
            .filter(|(other, wrote, by, _)| (writes || *wrote) && *by != task && other.meets(view));
        after.extend(conflicts.map(|(_, _, by, inferred)| (*by, !(infers && *inferred))));
        if writes {
            // Whoever comes after one of these comes after this one.
            known.retain(|(other, ..)| !view.covers(other));
        }
        known.push((view.clone(), writes, task, infers));
    }
}

fn shape(random: &mut Random) -> Vec<u32> {
    let mut left = LONGEST;
    let dims = 1 + random.below(3);
    (0..dims)
        .map(|dim| {
            let most = if dim + 1 == dims { left } else { 5 };
            let len = 1 + random.below(most.min(left));
            left /= len;
            len as u32
        })
        .collect()
}

fn view(random: &mut Random, tensor: usize, shape: &[u32]) -> View {
    let range = |len: &u32| {
        // Often all of it: rows, columns, whole tensors.
        let start = if random.one_in(2) { 0 } else { random.below(u64::from(*len)) as u32 };
        let rest = len - start;
        start..start + if random.one_in(3) { rest } else { 1 + random.below(u64::from(rest)) as u32 }
    };
    let ranges = shape.iter().map(range).collect();
    let edges = match random.below(16) {
        0 => Edges::NoDep,
        1 => Edges::Manual,
        _ => Edges::Inferred,
    };
    View { tensor, ranges, edges }
}

/// A scope that is open: the tensors that live in it, how many tasks it has, and whether edges are inferred.
struct Open {
    tensors: Vec<usize>,
    tasks: usize,
    infers: bool,
}

/// A plan that fits into rings of so many slots.
fn plan(random: &mut Random, tasks: u64, slots: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut shapes: Vec<Vec<u32>> = LASTING.iter().map(|shape| shape.to_vec()).collect();
    let mut touched = Touched(vec![Vec::new(); shapes.len()]);
    let mut scopes = vec![Open { tensors: (0..LASTING.len()).collect(), tasks: 0, infers: true }];
    let mut number = 0;
    while number < tasks as usize {
        let depth = scopes.len() - 1;
        // All scopes from depth 3 on share a ring.
        let used: usize =
            if depth < 3 { scopes[depth].tasks } else { scopes[3..].iter().map(|scope| scope.tasks).sum() };
        let full = used + 1 >= slots;
        if depth > 0 && (full || random.one_in(12)) {
            let closed = scopes.pop().unwrap();
            if depth > 3 {
                // They stand behind those of the scope around it in the ring that both use.
                scopes[depth - 1].tasks += closed.tasks;
            }
            steps.push(Step::Close);
            continue;
        }
        if depth < 6 && (full || random.one_in(10)) {
            let infers = !random.one_in(5);
            scopes.push(Open { tensors: Vec::new(), tasks: 0, infers });
            steps.push(Step::Open(if infers { ScopeMode::Auto } else { ScopeMode::Manual }));
            continue;
        }
        let known: Vec<usize> = scopes.iter().flat_map(|scope| &scope.tensors).copied().collect();
        let some = |random: &mut Random| {
            // Mostly new tensors and those that last.
            let at = if random.one_in(3) { LASTING.len() } else { known.len() };
            let tensor = known[random.below(at as u64) as usize];
            view(random, tensor, &shapes[tensor])
        };
        let changes = (!random.one_in(3)).then(|| (some(random), random.one_in(2)));
        let inputs = (0..random.below(4)).map(|_| some(random));
        // What it changes is not also an input: blocks would race.
        let inputs: Vec<View> = inputs
            .filter(|input| changes.as_ref().is_none_or(|(change, _)| change.tensor != input.tensor))
            .collect();
        let initial =
            |random: &mut Random| random.one_in(3).then(|| random.below(1 << 40) as i64 - (1 << 39));
        let makes = random.one_in(2).then(|| Made { shape: shape(random), initial: initial(random) });
        let mut predicate =
            random.one_in(8).then(|| (some(random), random.below(1 << 40) as i64 - (1 << 39)));
        // A tensor that a task makes and neither fills nor gives a value is undefined, so that such a task always runs.
        predicate = predicate.filter(|_| makes.as_ref().is_none_or(|made| made.initial.is_some()));
        let blocks = if random.one_in(3) { 1 + random.below(5) as u32 } else { 1 };
        let sync_start = blocks <= 2 && random.one_in(4);
        let lanes = 1 + random.below(7) as u8;
        let scope = scopes.last_mut().unwrap();
        scope.tasks += 1;
        let mut after = Vec::new();
        let mut touch = |view: &View, writes| touched.touch(view, writes, number, scope.infers, &mut after);
        inputs.iter().for_each(|view| touch(view, false));
        if let Some((view, _)) = &mut predicate {
            // A predicate has no other way.
            if view.edges == Edges::NoDep {
                view.edges = Edges::Manual;
            }
            touch(view, false);
        }
        changes.iter().for_each(|(view, _)| touch(view, true));
        if let Some(made) = &makes {
            let tensor = shapes.len();
            scope.tensors.push(tensor);
            shapes.push(made.shape.clone());
            touched.0.push(Vec::new());
            let ranges = made.shape.iter().map(|len| 0..*len).collect();
            let whole = View { tensor, ranges, edges: Edges::Inferred };
            touched.touch(&whole, true, number, scope.infers, &mut after);
        }
        after.sort_unstable();
        // Named once, if any of the accesses needs that.
        after.reverse();
        after.dedup_by_key(|(task, _)| *task);
        let seed = random.below(u64::MAX >> 33);
        let task = Task { inputs, changes, makes, blocks, sync_start, lanes, predicate, seed, after };
        steps.push(Step::Task(task));
        number += 1;
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

/// The kernel: scalars are the seed, how many inputs there are, bits (1 changes, 2 reads what it changes, 4 makes, 8 reads what it
/// makes), and the lanes. Lanes and blocks share the elements.
fn kernel(block: &Block<'_>) -> KernelResult {
    let (seed, inputs, bits, lanes) =
        (block.scalar(0)?, block.scalar(1)? as usize, block.scalar(2)?, block.scalar(3)?);
    let read = (0..inputs).map(|index| block.read::<i64>(index)).collect::<Result<Vec<_>, _>>()?;
    // Which of the task's lanes this is; one alone may be on either vector core.
    let count = lanes.count_ones() as usize;
    let lane = if count == 1 { 0 } else { (lanes & ((1 << block.lane() as u64) - 1)).count_ones() as usize };
    let (part, parts) = (block.index() as usize * count + lane, block.count() as usize * count);
    let mut index = inputs;
    for (bit, old_bit) in [(1, 2), (4, 8)] {
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
    let filled = |shape: &[u32], value: i64| vec![value; shape.iter().product::<u32>() as usize];
    let mut shapes: Vec<&[u32]> = LASTING.to_vec();
    let mut tensors: Vec<Vec<i64>> = LASTING.iter().map(|shape| filled(shape, 0)).collect();
    for step in steps {
        let Step::Task(task) = step else { continue };
        let places = |view: &View| view.places(shapes[view.tensor]);
        let holds = |(view, least): &(View, i64)| tensors[view.tensor][places(view)[0]] >= *least;
        let runs = task.predicate.as_ref().is_none_or(holds);
        let read = |view: &View| places(view).into_iter().map(|place| tensors[view.tensor][place]).collect();
        let inputs: Vec<Vec<i64>> = task.inputs.iter().map(read).collect();
        if let Some((view, reads)) = task.changes.as_ref().filter(|_| runs) {
            for (at, place) in places(view).into_iter().enumerate() {
                let element = &mut tensors[view.tensor][place];
                *element = value(task.seed ^ 1, &inputs, if *reads { *element } else { 0 }, at);
            }
        }
        if let Some(made) = &task.makes {
            let mut tensor = filled(&made.shape, made.initial.unwrap_or(0));
            for (at, element) in tensor.iter_mut().enumerate().filter(|_| runs) {
                *element = value(task.seed ^ 4, &inputs, *element, at);
            }
            tensors.push(tensor);
            shapes.push(&made.shape);
        }
    }
    tensors.truncate(LASTING.len());
    tensors
}

fn submit(
    graph: &mut Graph<'_>,
    kernel: KernelId,
    task: &Task,
    tensors: &mut Vec<Tensor<i64>>,
    tasks: &mut Vec<TaskId>,
) -> Result<(), RuntimeError> {
    let slice = |view: &View| {
        let slice = tensors[view.tensor].slice(&view.ranges)?;
        Ok::<_, RuntimeError>(if view.edges == Edges::Manual { slice.manual_dependencies() } else { slice })
    };
    let mut args = TaskArgs::new().blocks(task.blocks);
    for input in &task.inputs {
        let tensor = slice(input)?;
        args = if input.edges == Edges::NoDep { args.no_dep(&tensor) } else { args.input(&tensor) };
    }
    let mut bits = 0;
    if let Some((view, reads)) = &task.changes {
        let tensor = slice(view)?;
        args = match (view.edges, reads) {
            (Edges::NoDep, _) => args.no_dep(&tensor),
            (_, true) => args.inout(&tensor),
            (_, false) => args.output_existing(&tensor),
        };
        bits |= if *reads { 3 } else { 1 };
    }
    if let Some(Made { shape, initial }) = &task.makes {
        let plain = Create::of::<i64>(shape);
        args = args.output(initial.map_or(plain, |value| Create::filled(shape, value)));
        bits |= if initial.is_some() { 12 } else { 4 };
    }
    if let Some((view, least)) = &task.predicate {
        let first = vec![0; view.ranges.len()];
        args = args.when(Predicate::new(&slice(view)?, &first, Compare::Ge, *least));
    }
    if task.sync_start {
        args = args.sync_start();
    }
    args = args.scalar(task.seed).scalar(task.inputs.len() as u64).scalar(bits).scalar(u64::from(task.lanes));
    let explicit = graph.front_end() == FrontEnd::Explicit;
    for (before, _) in task.after.iter().filter(|(_, named)| *named || explicit) {
        args = args.after(tasks[*before]);
    }
    let lane = |bit: u8| (task.lanes & bit != 0).then_some(kernel);
    let kernels = Kernels { aic: lane(1), aiv0: lane(2), aiv1: lane(4) };
    let submitted = graph.submit(kernels, &args)?;
    // Otherwise a task of an inner scope would wait for one that starts when the outer scope closes.
    graph.publish(submitted.task)?;
    if task.makes.is_some() {
        tensors.push(submitted.tensor(0)?);
    }
    tasks.push(submitted.task);
    Ok(())
}

/// Runs a plan and returns what lasts of it.
fn parallel(runtime: &mut Runtime, kernel: KernelId, front_end: FrontEnd, steps: &[Step]) -> Vec<Vec<i64>> {
    let mut lasting: Vec<Buffer<i64>> = LASTING.iter().map(|shape| Buffer::zeroed(shape)).collect();
    runtime
        .run(front_end, soon(), |graph| {
            let imports = lasting.iter_mut().map(|buffer| graph.import(buffer));
            let mut tensors = imports.collect::<Result<Vec<_>, _>>()?;
            let mut tasks = Vec::new();
            for step in steps {
                match step {
                    Step::Open(mode) => graph.scope_begin(*mode)?,
                    Step::Close => graph.scope_end()?,
                    Step::Task(task) => submit(graph, kernel, task, &mut tensors, &mut tasks)?,
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
    compare(0..amount("RANDOM_GRAPHS", 25), amount("RANDOM_TASKS", 150));
}

#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn large_random_graphs_give_what_their_tasks_give_one_after_the_other() {
    compare(1000..1500, 2000);
}

fn compare(seeds: Range<u64>, tasks: u64) {
    for seed in seeds {
        let mut random = Random(seed.wrapping_mul(0x9e3779b97f4a7c15) + 1);
        let slots = 4 + random.below(61) as usize;
        // As many small ones as large ones.
        let most = tasks.min(2 << random.below(u64::from(tasks.ilog2()) + 1));
        let tasks = 1 + random.below(most);
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
