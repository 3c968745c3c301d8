//! Hosts for tests: network namespaces with a cable between them. Making them needs root and the program `ip`; where
//! that is not possible, a test that needs them fails and says so.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Two hosts on one network.
pub(crate) struct TwoHosts {
    names: [String; 2],
}

impl TwoHosts {
    /// The address of the first, and of the second.
    pub(crate) const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

    pub(crate) fn make() -> Self {
        // Relaxed: only the number counts.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let hosts = Self { names: ["a", "b"].map(|end| format!("cc{}x{number}{end}", std::process::id())) };
        let [first, second] = &hosts.names;
        ip(&["netns", "add", first]);
        ip(&["netns", "add", second]);
        ip(&[
            "link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second,
        ]);
        for (name, address) in hosts.names.iter().zip(Self::ADDRESSES) {
            ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", "cable"]);
            ip(&["-n", name, "link", "set", "cable", "up"]);
            ip(&["-n", name, "link", "set", "lo", "up"]);
        }
        hosts
    }

    /// The same command on one of the hosts.
    pub(crate) fn on(&self, host: usize, command: &Command) -> Command {
        let mut there = Command::new("ip");
        there.args(["netns", "exec", &self.names[host]]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => there.env(name, value),
                None => there.env_remove(name),
            };
        }
        there.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        there
    }

    /// Pulls the cable.
    pub(crate) fn cut(&self) {
        ip(&["-n", &self.names[1], "link", "set", "cable", "down"]);
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "delete", name]).stderr(Stdio::null()).status();
        }
    }
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output();
    let done = output.as_ref().is_ok_and(|output| output.status.success());
    assert!(
        done,
        "this test makes network namespaces, which needs root and the program `ip`: ip {}: {output:?}",
        args.join(" ")
    );
}
