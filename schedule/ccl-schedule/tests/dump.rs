//! A dumped schedule is JSON that holds every operation and channel.

use ccl_schedule::algo::{self, Shape};
use ccl_schedule::dump;
use serde_json::Value;

#[test]
fn a_dump_parses_and_holds_every_message_and_channel() {
    for names in algo::NAMES {
        let program = algo::build(names[0], 4, &Shape::default()).unwrap();
        let mut text = Vec::new();
        dump(&*program, &mut text).unwrap();
        let json: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(json["name"], names[0]);
        let ops: Vec<&Value> =
            json["programs"].as_array().unwrap().iter().flat_map(|p| p.as_array().unwrap()).collect();
        let sends = ops.iter().filter(|op| op["op"] == "send").count();
        assert_eq!(sends as u64, program.messages());
        assert_eq!(json["messages"], program.messages());
        let reached: Vec<_> = (0..4).flat_map(|r| program.dirs().iter().map(move |&d| (r, d))).collect();
        let channels = reached.iter().filter(|&&(r, d)| program.peer(r, d).is_some()).count();
        assert_eq!(json["channels"].as_array().unwrap().len(), channels);
    }
}
