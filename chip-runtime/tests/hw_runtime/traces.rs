//! Recordings of graphs on a device.

use super::{COUNT, floats, soon, with_device};
use chip_runtime::{Create, FrontEnd, Kernels, Lane, TaskArgs};

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer runtime"]
fn a_recording_has_tasks_by_stream_and_their_order() {
    with_device(|device, graphs, [scale, add]| {
        let x = floats(device, 1.0);
        let run = |graphs: &mut chip_runtime::on_device::GraphDevice| {
            graphs
                .run(FrontEnd::Prebuilt, soon(), |graph| {
                    let x = graph.import::<f32>(&x, &[COUNT])?;
                    let times =
                        |factor| TaskArgs::new().input(&x).output(Create::of::<f32>(&[COUNT])).scalar(factor);
                    let two = graph.submit(Kernels::aic(scale), &times(2))?.outputs[0];
                    let three = graph.submit(Kernels::aiv(scale), &times(3))?.outputs[0];
                    let sum = TaskArgs::new().input(&two).input(&three).output(Create::of::<f32>(&[COUNT]));
                    let sum = graph.submit(Kernels::aiv(add), &sum)?.task;
                    graph.submit_dummy(&TaskArgs::new().after(sum)).map(drop)
                })
                .unwrap();
        };
        run(graphs);
        assert!(graphs.take_recording().is_none(), "recorded though nobody asked");
        graphs.record();
        for _ in 0..2 {
            run(graphs);
            let recording = graphs.take_recording().unwrap();
            let kernels: Vec<&str> = recording.tasks().map(|(_, task)| task.kernels.as_str()).collect();
            assert_eq!(kernels, ["scale:kernel_entry", "scale:kernel_entry", "add:kernel_entry", ""]);
            let edges: Vec<_> = recording.edges().map(|(from, to)| (from.local(), to.local())).collect();
            assert_eq!(edges, [(0, 2), (1, 2), (2, 3)]);
            let mut spans = recording.spans().to_vec();
            spans.sort_by_key(|span| span.task);
            assert_eq!(spans.iter().map(|span| span.task.local()).collect::<Vec<_>>(), [0, 1, 2]);
            assert_eq!(
                spans.iter().map(|span| span.lane).collect::<Vec<_>>(),
                [Lane::Aic, Lane::Aiv0, Lane::Aiv0]
            );
            assert!(spans.iter().all(|span| 0 < span.start_ns && span.start_ns <= span.end_ns), "{spans:?}");
            // A task begins when those before it have ended.
            assert!(
                spans[0].end_ns <= spans[2].start_ns && spans[1].end_ns <= spans[2].start_ns,
                "{spans:?}"
            );
            let mut trace = Vec::new();
            recording.write_trace(&mut trace, "chip 0").unwrap();
            let trace = String::from_utf8(trace).unwrap();
            let names = trace.matches("\"name\":\"stream of AIC\"").count()
                + trace.matches("\"name\":\"stream of AIV\"").count();
            assert_eq!((names, trace.matches("\"ph\":\"X\"").count()), (2, 3), "{trace}");
            assert_eq!(trace.matches("\"name\":\"needs\"").count(), 4, "{trace}");
        }
        x.release().unwrap();
    });
}
