//! The same graph in every front end.

mod common;

use chip_runtime::{
    Buffer, Create, FrontEnd, Graph, KernelId, Kernels, Limits, Runtime, RuntimeError, ScopeMode, TaskArgs,
};
use common::soon;

fn affine(runtime: &mut Runtime) -> KernelId {
    runtime.kernel("affine", |block| {
        let (scale, offset) = (block.scalar(0)? as i64, block.scalar(1)? as i64);
        let (from, to) = (block.elements::<i64>(0)?, block.elements::<i64>(1)?);
        // Each block has its part.
        let part = from.len().div_ceil(block.count() as usize);
        let start = part * block.index() as usize;
        let mut values = vec![0; part.min(from.len() - start)];
        from.read(start, &mut values)?;
        values.iter_mut().for_each(|value| *value = *value * scale + offset);
        Ok(to.write(start, &values)?)
    })
}

/// x → 2x + 1 → scopes with halves → y.
fn build(
    graph: &mut Graph<'_>,
    kernel: KernelId,
    x: &mut Buffer<i64>,
    y: &mut Buffer<i64>,
) -> Result<(), RuntimeError> {
    let (x, y) = (graph.import(x)?, graph.import(y)?);
    let affine = |scale, offset| TaskArgs::new().scalar(scale).scalar(offset);
    let first = graph
        .submit(Kernels::aic(kernel), &affine(2, 1).input(&x).output(Create::of::<i64>(&[8])).blocks(4))?;
    let first_tensor = first.tensor::<i64>(0)?;
    for half in [0..4, 4..8] {
        graph.scope(ScopeMode::Auto, |graph| {
            let part = first_tensor.range(half.clone())?;
            let args = affine(3, 0).input(&part).output(Create::of::<i64>(&[4])).after(first.task);
            let tripled = graph.submit(Kernels::aiv(kernel), &args)?;
            let to = y.range(half.clone())?;
            let args =
                affine(1, 5).input(&tripled.tensor::<i64>(0)?).output_existing(&to).after(tripled.task);
            graph.submit(Kernels::aiv(kernel), &args).map(drop)
        })?;
    }
    Ok(())
}

/// CR-2
#[test]
fn the_same_graph_gives_the_same_bytes_in_every_front_end() {
    let mut runtime = Runtime::new(Limits { clusters: 2, ..Limits::default() }).unwrap();
    let kernel = affine(&mut runtime);
    let values: Vec<i64> = (0..8).collect();
    let expected: Vec<i64> = values.iter().map(|x| (2 * x + 1) * 3 + 5).collect();
    for round in 0..20 {
        for front_end in FrontEnd::ALL {
            let (mut x, mut y) = (Buffer::of(&values), Buffer::zeroed(&[8]));
            runtime.run(front_end, soon(), |graph| build(graph, kernel, &mut x, &mut y)).unwrap();
            assert_eq!(y.to_vec().unwrap(), expected, "{front_end:?}, round {round}");
        }
    }
}
