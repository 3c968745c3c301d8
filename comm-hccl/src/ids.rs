//! The three spaces of device ids, and the list that maps them.
//!
//! With `ASCEND_RT_VISIBLE_DEVICES=2,3` logical device 0 is visible device 2. Some vendor calls take one number and some
//! the other, and a mix-up only shows as a driver error, so each space has its own type (HC-4).

use std::fmt;

macro_rules! id_space {
    ($( $(#[$meta:meta])* $name:ident $word:literal; )*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    )* };
}

id_space! {
    /// The devices that this process may use, counted from 0. Most vendor calls take it.
    LogicalDevice "logical device";
    /// As the driver numbers the devices of this host or container. `aclrtMemSetAccess` takes it.
    VisibleDevice "visible device";
    /// As the machine numbers its devices. The status of peer access is asked for with it.
    PhysicalDevice "physical device";
}

impl LogicalDevice {
    /// As the vendor takes it.
    pub(crate) fn raw(self) -> i32 {
        self.0 as i32
    }
}

/// The largest id in a list: far above that of any machine, and small enough for the vendor's 32-bit signed ids.
const MAX_ID: u32 = 65_535;

/// Which devices this process may use, in its own order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VisibleDevices {
    /// No list: logical and driver-visible ids are the same.
    All,
    /// The list, in order.
    Listed(Vec<VisibleDevice>),
}

/// A malformed list of devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "ASCEND_RT_VISIBLE_DEVICES={list:?}: {problem}; expected distinct device numbers with commas between, such as 0,1,2"
)]
pub struct VisibleDevicesError {
    /// The whole list.
    pub list: String,
    /// What is wrong.
    pub problem: ListProblem,
}

/// What is wrong with a list of devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListProblem {
    /// Set, but to nothing.
    #[error("it is empty")]
    Empty,
    /// Not a number in range.
    #[error("entry {0:?} is not a device number")]
    Malformed(String),
    /// Named twice.
    #[error("device {0} is named twice")]
    Twice(u32),
}

impl VisibleDevices {
    /// The name of the variable that the vendor reads too.
    pub const VARIABLE: &'static str = "ASCEND_RT_VISIBLE_DEVICES";

    /// Reads the environment.
    pub fn from_env() -> Result<Self, VisibleDevicesError> {
        match std::env::var_os(Self::VARIABLE) {
            None => Ok(Self::All),
            Some(list) => Self::parse(&list.to_string_lossy()),
        }
    }

    /// Reads a list. The vendor stops at the first entry that it cannot read and uses what came before it. Here that is an
    /// error, because a run on fewer devices than asked for is worse than none.
    pub fn parse(list: &str) -> Result<Self, VisibleDevicesError> {
        let fail = |problem| VisibleDevicesError { list: list.to_owned(), problem };
        if list.is_empty() {
            return Err(fail(ListProblem::Empty));
        }
        let mut devices: Vec<VisibleDevice> = Vec::new();
        for entry in list.split(',') {
            let digits = !entry.is_empty() && entry.bytes().all(|b| b.is_ascii_digit());
            let number = entry.parse().ok().filter(|&n| digits && n <= MAX_ID);
            let id = VisibleDevice(number.ok_or_else(|| fail(ListProblem::Malformed(entry.to_owned())))?);
            if devices.contains(&id) {
                return Err(fail(ListProblem::Twice(id.0)));
            }
            devices.push(id);
        }
        Ok(Self::Listed(devices))
    }

    /// The device behind a logical id, if the list has one.
    pub fn visible(&self, logical: LogicalDevice) -> Option<VisibleDevice> {
        match self {
            Self::All => Some(VisibleDevice(logical.0)),
            Self::Listed(devices) => devices.get(logical.0 as usize).copied(),
        }
    }

    /// This process's own id of a device, if it may use it.
    pub fn logical(&self, visible: VisibleDevice) -> Option<LogicalDevice> {
        match self {
            Self::All => Some(LogicalDevice(visible.0)),
            Self::Listed(devices) => {
                devices.iter().position(|&d| d == visible).map(|index| LogicalDevice(index as u32))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // F12, HC-4
    #[test]
    fn f12_one_bad_entry_refuses_and_quotes_the_whole_list() {
        for (list, problem) in [
            ("", ListProblem::Empty),
            ("2,x", ListProblem::Malformed("x".into())),
            ("2,,3", ListProblem::Malformed("".into())),
            ("2,3,", ListProblem::Malformed("".into())),
            ("-1", ListProblem::Malformed("-1".into())),
            ("+1", ListProblem::Malformed("+1".into())),
            ("1, 2", ListProblem::Malformed(" 2".into())),
            ("0-3", ListProblem::Malformed("0-3".into())),
            ("65536", ListProblem::Malformed("65536".into())),
            ("99999999999999999999", ListProblem::Malformed("99999999999999999999".into())),
            ("3,2,3", ListProblem::Twice(3)),
        ] {
            let error = VisibleDevices::parse(list).expect_err(list);
            assert_eq!(error, VisibleDevicesError { list: list.into(), problem });
            let what = match &error.problem {
                ListProblem::Empty => "it is empty".to_owned(),
                ListProblem::Malformed(entry) => format!("entry {entry:?} is not a device number"),
                ListProblem::Twice(device) => format!("device {device} is named twice"),
            };
            assert_eq!(
                error.to_string(),
                format!(
                    "ASCEND_RT_VISIBLE_DEVICES={list:?}: {what}; expected distinct device numbers with commas between, such \
                     as 0,1,2"
                )
            );
        }
    }

    #[test]
    fn without_a_list_the_spaces_coincide() {
        assert_eq!(VisibleDevices::All.visible(LogicalDevice(5)), Some(VisibleDevice(5)));
        assert_eq!(VisibleDevices::All.logical(VisibleDevice(5)), Some(LogicalDevice(5)));
    }

    proptest! {
        #[test]
        fn a_list_maps_each_position_to_its_device_and_back(
            ids in proptest::collection::hash_set(0..=MAX_ID, 1..20),
        ) {
            let ids: Vec<u32> = ids.into_iter().collect();
            let list = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            let devices = VisibleDevices::parse(&list).unwrap();
            for (position, &device) in ids.iter().enumerate() {
                let logical = LogicalDevice(position as u32);
                prop_assert_eq!(devices.visible(logical), Some(VisibleDevice(device)));
                prop_assert_eq!(devices.logical(VisibleDevice(device)), Some(logical));
            }
            prop_assert_eq!(devices.visible(LogicalDevice(ids.len() as u32)), None);
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            if let Ok(VisibleDevices::Listed(devices)) = VisibleDevices::parse(&text) {
                let list = devices.iter().map(|d| d.0.to_string()).collect::<Vec<_>>();
                prop_assert_eq!(list.len(), text.split(',').count());
            }
        }
    }
}
