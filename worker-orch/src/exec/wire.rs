//! Numbers and bytes, one after the other: how a handover is written and read.

use std::str;

/// Writes.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    /// How many there are, then each of them.
    pub(super) fn list<T>(&mut self, list: &[T], mut each: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.number(list.len() as u64);
        list.iter().for_each(|item| each(self, item));
        self
    }

    /// Whether there is one, then it.
    pub(super) fn option<T>(&mut self, option: Option<T>, each: impl FnOnce(&mut Self, T)) -> &mut Self {
        self.number(u64::from(option.is_some()));
        if let Some(item) = option {
            each(self, item);
        }
        self
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Reads; every answer is `None` when the bytes end too early or make no sense.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        let (number, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        u64::from_le_bytes(*number).try_into().ok()
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.number::<usize>()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.bytes()?).ok()
    }

    /// As [`Writer::list`] wrote it. Each item takes at least a number, so a count that lies ends with the bytes and not with the memory.
    pub(super) fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number::<usize>()?;
        (0..count).map(|_| each(self)).collect()
    }

    /// As [`Writer::option`] wrote it.
    pub(super) fn option<T>(&mut self, each: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.number::<u64>()? {
            0 => Some(None),
            1 => each(self).map(Some),
            _ => None,
        }
    }

    /// `value`, if everything was read.
    pub(super) fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}
