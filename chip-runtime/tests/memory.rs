//! The memory of the heap: looked for before it is given out, and promised to the process.

mod common;

use chip_runtime::{Create, ErrorKind, FrontEnd, Limits, Runtime};
use common::soon;

/// More than most machines have.
#[test]
fn memory_that_is_not_there_is_an_error_with_need_and_have() {
    let machine = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = machine.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    if total.unwrap().parse::<u64>().unwrap() >= 1 << 29 {
        return;
    }
    let limits = Limits { heap: 1 << 40, ..Limits::default() };
    let mut runtime = Runtime::new(limits).unwrap();
    let large = [Create::of::<f32>(&[1 << 20, 1 << 17])];
    for front_end in FrontEnd::ALL {
        let error = runtime.run(front_end, soon(), |graph| graph.allocate(&large).map(drop)).unwrap_err();
        let ErrorKind::HeapMemory { need, have, .. } = error.kind else { panic!("{error}") };
        assert!(need == 1 << 39 && have < need, "{error}");
        assert_eq!(error.code(), 2);
        let text = error.to_string();
        assert!(
            text.contains("the heap of a ring needs 549755813888 bytes of memory, and there are "),
            "{text}"
        );
        assert!(text.contains(", or set a lower `heap`") && text.contains("memory.rs:"), "{text}");
        // Nothing was taken.
        runtime.run(front_end, soon(), |_| Ok(())).unwrap();
    }
}

/// As the system sees it: an accountable mapping counts in what it has promised.
#[test]
fn the_heap_is_promised_to_the_process_and_committed_on_touch() {
    let mut runtime = Runtime::new(Limits { heap: 64 << 20, ..Limits::default() }).unwrap();
    let at = runtime.run(FrontEnd::Inferred, soon(), |graph| {
        Ok(graph.allocate(&[Create::of::<u8>(&[4096])])?.outputs[0].addr)
    });
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| !holds(line, at.as_ref().unwrap()));
    lines.next().expect("the heap is mapped");
    let mut value = |field: &str| lines.find_map(|line| line.strip_prefix(field)).unwrap().trim().to_owned();
    let resident: u64 = value("Rss:").strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(resident < 32 << 10, "{resident} kB are in memory");
    let flags = value("VmFlags:");
    assert!(flags.split(' ').any(|flag| flag == "ac"), "{flags}");
}

/// Whether this is the first line of the mapping that holds the address.
fn holds(line: &str, at: &u64) -> bool {
    let range = line.split(' ').next().and_then(|range| range.split_once('-'));
    let number = |text| u64::from_str_radix(text, 16).ok();
    let range = range.and_then(|(start, end)| Some(number(start)?..number(end)?));
    range.is_some_and(|range| range.contains(at))
}
