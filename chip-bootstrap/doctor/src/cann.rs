//! What Ascend devices need: driver, devices, libraries, compiler, ports.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::finding::{Finding, State};
use crate::machine::Machine;
use crate::trials::Trials;

const SOURCE_IT: &str = "install the CANN toolkit and source its set_env.sh";

pub(crate) fn examine(machine: &Machine, trials: &Trials) -> Vec<Finding> {
    let mut findings =
        vec![driver(machine), firmware(machine), devices(machine), toolkit(machine), compiler(machine)];
    findings.extend(libraries(trials));
    findings.push(ports(machine));
    findings
}

/// Where driver and firmware are installed.
fn install_path(machine: &Machine, key: &str) -> PathBuf {
    let stated = machine.field("/etc/ascend_install.info", key);
    stated.filter(|path| !path.is_empty()).map_or_else(|| "/usr/local/Ascend".into(), PathBuf::from)
}

fn driver(machine: &Machine) -> Finding {
    let file = install_path(machine, "Driver_Install_Path_Param").join("driver/version.info");
    version_of(
        machine,
        "driver",
        file,
        "install the Ascend driver of the NPU; in a container, mount its folder too",
    )
}

fn firmware(machine: &Machine) -> Finding {
    let file = install_path(machine, "Firmware_Install_Path_Param").join("firmware/version.info");
    version_of(
        machine,
        "firmware",
        file,
        "install the firmware that belongs to the driver (`npu-smi info` shows both)",
    )
}

fn version_of(machine: &Machine, what: &'static str, file: PathBuf, advice: &str) -> Finding {
    match machine.field(&file, "Version") {
        Some(version) => Finding::new(what, State::Good, format!("{version} ({})", file.display()), advice),
        None => Finding::new(what, State::Advised, format!("no {}", file.display()), advice),
    }
}

fn devices(machine: &Machine) -> Finding {
    let names = machine.list("/dev");
    let number = |name: &String| name.strip_prefix("davinci")?.parse::<u32>().ok();
    let mut ids: Vec<u32> = names.iter().filter_map(number).collect();
    ids.sort_unstable();
    let needed = ["davinci_manager", "devmm_svm", "hisi_hdc"];
    let absent: Vec<&str> =
        needed.into_iter().filter(|name| !names.iter().any(|found| found == name)).collect();
    let list = machine.variable("ASCEND_RT_VISIBLE_DEVICES");
    let shown = list.map_or(String::new(), |list| format!("; ASCEND_RT_VISIBLE_DEVICES={list}"));
    if ids.is_empty() {
        let advice = "no device is visible: check `npu-smi info`, and in a container pass --device /dev/davinciN and the three below /dev";
        return Finding::new("devices", State::Advised, format!("no /dev/davinciN{shown}"), advice);
    }
    let files = ids.iter().map(|id| format!("davinci{id}")).collect::<Vec<_>>().join(", ");
    let found = format!("{files} are the devices 0 to {}{shown}", ids.len() - 1);
    let advice = format!(
        "pass these to the container as well: {}",
        absent.iter().map(|name| format!("/dev/{name}")).collect::<Vec<_>>().join(", ")
    );
    Finding::noted("devices", absent.is_empty(), found, advice)
}

/// The folders that the vendor's `set_env.sh` names.
fn homes(machine: &Machine) -> Vec<PathBuf> {
    ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"]
        .iter()
        .filter_map(|name| machine.variable(name))
        .map(PathBuf::from)
        .collect()
}

fn toolkit(machine: &Machine) -> Finding {
    let homes = homes(machine);
    let Some(home) = homes.first() else {
        return Finding::new("CANN", State::Advised, "ASCEND_HOME_PATH is not set", SOURCE_IT);
    };
    let files =
        ["version.cfg", "compiler/version.info", "runtime/version.info", "share/info/runtime/version.info"];
    let keys = ["Version", "runtime_running_version", "toolkit_running_version"];
    let stated =
        files.iter().find_map(|file| keys.iter().find_map(|key| machine.field(home.join(file), key)));
    match stated {
        Some(version) => {
            Finding::new("CANN", State::Good, format!("{version} ({})", home.display()), SOURCE_IT)
        }
        None => {
            let found = format!("{} has no version file", home.display());
            Finding::new("CANN", State::Advised, found, format!("check the installation; {SOURCE_IT}"))
        }
    }
}

fn compiler(machine: &Machine) -> Finding {
    let arch = format!("{}-linux", std::env::consts::ARCH);
    let below = ["bin", "compiler/bin", "compiler/ccec_compiler/bin", "ccec_compiler/bin"];
    let folders = homes(machine).into_iter().flat_map(|home| {
        let by_arch = home.join(&arch);
        below.into_iter().flat_map(move |folder| [home.join(folder), by_arch.join(folder)])
    });
    let in_homes = folders.flat_map(|folder| ["bisheng", "ccec"].map(|name| folder.join(name)));
    let found = in_homes.into_iter().find(|file| machine.path(file).is_file());
    let found = found.or_else(|| machine.program("bisheng")).or_else(|| machine.program("ccec"));
    let advice = format!("kernels for a device are compiled with it (cargo xtask kernels): {SOURCE_IT}");
    match found {
        Some(file) => Finding::new("kernel compiler", State::Good, file.display().to_string(), advice),
        None => Finding::new("kernel compiler", State::Advised, "neither bisheng nor ccec", advice),
    }
}

fn libraries(trials: &Trials) -> Vec<Finding> {
    match (trials.vendor)() {
        Ok(answer) => vec![
            Finding::new("libraries", State::Good, answer.libraries, SOURCE_IT),
            Finding::noted(
                "runtime",
                answer.devices > 0,
                format!("{}, {} devices", answer.soc, answer.devices),
                "the runtime sees no device: check `npu-smi info`, the driver and ASCEND_RT_VISIBLE_DEVICES",
            ),
        ],
        Err(error) => vec![Finding::new("libraries", State::Advised, error, SOURCE_IT)],
    }
}

/// The ports that rank 0 of HCCL listens on.
fn ports(machine: &Machine) -> Finding {
    let base =
        machine.variable("HCCL_IF_BASE_PORT").and_then(|port| port.parse::<u16>().ok()).unwrap_or(60_000);
    let range = base..=base.saturating_add(31);
    let mut taken: Vec<u16> =
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().flat_map(|file| used(machine, file)).collect();
    taken.retain(|port| range.contains(port));
    taken.sort_unstable();
    taken.dedup();
    let (first, last) = (range.start(), range.end());
    if !taken.is_empty() {
        let ports = taken.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        let advice = "HCCL's rank 0 listens there: end the program that holds them, or move the range with HCCL_IF_BASE_PORT";
        return Finding::new("ports", State::Advised, format!("taken: {ports}"), advice);
    }
    let may_be_taken = handed_out(machine, &range) && !reserved(machine, &range);
    Finding::noted(
        "ports",
        !may_be_taken,
        format!(
            "{first} to {last} are free{}",
            if may_be_taken { ", and other programs may get them at any time" } else { "" }
        ),
        format!("reserve them: sysctl -w net.ipv4.ip_local_reserved_ports={first}-{last}"),
    )
}

/// Local ports in a table of the kernel: the second column is address:port in hexadecimal.
fn used(machine: &Machine, file: &str) -> Vec<u16> {
    let port = |line: &str| u16::from_str_radix(line.split_whitespace().nth(1)?.rsplit(':').next()?, 16).ok();
    machine.read(file).unwrap_or_default().lines().skip(1).filter_map(port).collect()
}

/// Whether the kernel gives ports of the range to programs that ask for any.
fn handed_out(machine: &Machine, range: &RangeInclusive<u16>) -> bool {
    let line = machine.line("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let numbers: Vec<u16> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    matches!(numbers.as_slice(), [first, last] if first <= range.end() && last >= range.start())
}

fn reserved(machine: &Machine, range: &RangeInclusive<u16>) -> bool {
    let line = machine.line("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    let holds = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        Some(first <= *range.start() && last >= *range.end())
    };
    line.split(',').any(|part| holds(part.trim()) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::{Planted, failing, good, state};

    /// A host with two devices and everything that they need.
    fn host() -> Planted {
        let files = [
            ("/usr/local/Ascend/driver/version.info", "Version=25.0.rc1\n"),
            ("/usr/local/Ascend/firmware/version.info", "Version=7.7.0.1.231\n"),
            ("/dev/davinci4", ""),
            ("/dev/davinci5", ""),
            ("/dev/davinci_manager", ""),
            ("/dev/devmm_svm", ""),
            ("/dev/hisi_hdc", ""),
            ("/opt/cann/version.cfg", "# version: 1.0\nruntime_running_version=[8.5.0:8.5.RC1]\n"),
            ("/opt/cann/compiler/ccec_compiler/bin/ccec", ""),
            ("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
            ("/proc/sys/net/ipv4/ip_local_reserved_ports", "50000,60000-60031\n"),
        ];
        let planted = Planted::new().variable("ASCEND_HOME_PATH", "/opt/cann");
        files.into_iter().fold(planted, |planted, (file, text)| planted.file(file, text))
    }

    #[test]
    fn a_host_with_devices_has_everything() {
        let findings = examine(&host().machine(), &good());
        assert!(findings.iter().all(|finding| finding.state == State::Good), "{findings:?}");
        let devices = findings.iter().find(|finding| finding.what == "devices").unwrap();
        assert!(devices.found.contains("davinci4, davinci5 are the devices 0 to 1"), "{devices:?}");
    }

    #[test]
    fn a_machine_without_devices_gets_notes_and_still_simulates() {
        let findings = examine(&Planted::new().machine(), &failing());
        for what in ["driver", "firmware", "devices", "CANN", "kernel compiler", "libraries"] {
            assert_eq!(state(&findings, what), State::Advised, "{what}");
        }
        assert!(findings.iter().all(|finding| !finding.advice.is_empty()), "{findings:?}");
    }

    #[test]
    fn a_container_without_the_managers_files_is_noted() {
        let planted = Planted::new().file("/dev/davinci0", "").file("/dev/davinci_manager", "");
        let found = devices(&planted.machine());
        assert_eq!(found.state, State::Advised);
        assert!(found.advice.contains("/dev/devmm_svm, /dev/hisi_hdc"), "{found:?}");
    }

    #[test]
    fn the_driver_is_where_its_installation_says() {
        let planted = Planted::new()
            .file("/etc/ascend_install.info", "UserName=x\nDriver_Install_Path_Param=/data/npu\n")
            .file("/data/npu/driver/version.info", "Version=24.1\n");
        assert_eq!(driver(&planted.machine()).found, "24.1 (/data/npu/driver/version.info)");
    }

    #[test]
    fn ports_that_are_taken_or_may_be_are_noted() {
        // 0xEA61 is 60001.
        let table = "  sl  local_address rem_address   st\n   0: 0100007F:EA61 00000000:0000 0A\n   1: 00000000:0016 00000000:0000 0A\n";
        let taken = ports(&host().file("/proc/net/tcp", table).machine());
        assert_eq!((taken.state, taken.found.as_str()), (State::Advised, "taken: 60001"));
        let moved = host().file("/proc/net/tcp", table).variable("HCCL_IF_BASE_PORT", "61000");
        assert_eq!(ports(&moved.machine()).state, State::Good);
        let unreserved = host().file("/proc/sys/net/ipv4/ip_local_reserved_ports", "\n");
        let found = ports(&unreserved.machine());
        assert!(found.state == State::Advised && found.advice.contains("60000-60031"), "{found:?}");
    }

    #[test]
    fn a_runtime_that_sees_no_device_is_noted() {
        let mut trials = good();
        trials.vendor =
            || Ok(crate::trials::VendorAnswer { libraries: "ACL".into(), soc: String::new(), devices: 0 });
        assert_eq!(state(&libraries(&trials), "runtime"), State::Advised);
    }
}
