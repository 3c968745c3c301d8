//! The byte cursor under every wire form: values one after the other, little endian, without padding.
//!
//! Two kinds of values can be mixed. [`Writer::number`], [`Writer::bytes`], [`Writer::list`] and
//! [`Writer::option`] are self-describing: a number takes eight bytes, and everything of variable size has
//! its length before it. [`Writer::u8`] to [`Writer::u64`] and [`Writer::raw`] write exactly the bytes named,
//! for layouts that are fixed elsewhere.
//!
//! [`Reader`] is total: on any input each method returns a value or `None`. It never panics, never reads past
//! the end, and never allocates more than a small multiple of the input.
//!
//! ```
//! use worker_errors::cursor::{Reader, Writer};
//!
//! let mut to = Writer::default();
//! to.u8(7).text("x").list(&[1, 2], |to, item| {
//!     to.number(*item);
//! });
//! let bytes = to.into_bytes();
//!
//! let decode = |bytes| {
//!     let mut from = Reader::new(bytes);
//!     let value = (from.u8()?, from.text()?, from.list(|from| from.number::<u64>())?);
//!     from.end(value)
//! };
//! assert_eq!(decode(&bytes), Some((7, "x", vec![1, 2])));
//! assert_eq!(decode(&bytes[1..]), None);
//! ```

use std::str;

/// Appends values to a byte string.
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

/// Takes values from a byte string, in the order in which they were written.
///
/// After a method has returned `None` the position is undefined: give up.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    len: usize,
}

macro_rules! fixed_width {
    ($($name:ident)*) => {
        impl Writer {
            $(
                #[doc = concat!("A `", stringify!($name), "` in its own width.")]
                pub fn $name(&mut self, value: $name) -> &mut Self {
                    self.raw(&value.to_le_bytes())
                }
            )*
        }

        impl Reader<'_> {
            $(
                #[doc = concat!("A `", stringify!($name), "` in its own width.")]
                pub fn $name(&mut self) -> Option<$name> {
                    self.array().map($name::from_le_bytes)
                }
            )*
        }
    };
}

fixed_width!(u8 u16 u32 u64 i32);

impl Writer {
    /// Exactly these bytes, without a length.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A number, in eight bytes.
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.u64(number)
    }

    /// A length, then the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64).raw(bytes)
    }

    /// A length, then the text in UTF-8.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    /// A count, then each item. `each` writes at least one byte an item.
    pub fn list<T>(&mut self, list: &[T], mut each: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.number(list.len() as u64);
        list.iter().for_each(|item| each(self, item));
        self
    }

    /// Whether there is a value, then the value.
    pub fn option<T>(&mut self, option: Option<T>, each: impl FnOnce(&mut Self, T)) -> &mut Self {
        self.number(u64::from(option.is_some()));
        if let Some(item) = option {
            each(self, item);
        }
        self
    }

    /// How many bytes were written.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl<'a> Reader<'a> {
    /// A reader at the first of these bytes. They must not change meanwhile: copy them out of shared memory
    /// first.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, len: bytes.len() }
    }

    /// Exactly `len` bytes.
    pub fn raw(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    /// Exactly `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }

    /// As [`Writer::number`] wrote it; `None` where the number does not fit a `T`.
    pub fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        self.u64()?.try_into().ok()
    }

    /// As [`Writer::bytes`] wrote it.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        self.raw(len)
    }

    /// As [`Writer::text`] wrote it; `None` where the bytes are not UTF-8.
    pub fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.bytes()?).ok()
    }

    /// As [`Writer::list`] wrote it. A count above the number of bytes left is refused before anything is
    /// read, so a wrong count costs no memory.
    pub fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number::<usize>().filter(|count| *count <= self.rest.len())?;
        (0..count).map(|_| each(self)).collect()
    }

    /// As [`Writer::option`] wrote it.
    pub fn option<T>(&mut self, each: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.u64()? {
            0 => Some(None),
            1 => each(self).map(Some),
            _ => None,
        }
    }

    /// How many bytes were read.
    pub fn position(&self) -> usize {
        self.len - self.rest.len()
    }

    /// All bytes that are left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// `value`, unless bytes are left.
    pub fn end<T>(self, value: T) -> Option<T> {
        self.rest.is_empty().then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Everything = (u8, u16, u32, u64, i32, Vec<u8>, String, Vec<u64>, Option<u32>, [u8; 3]);

    fn encode(value: &Everything) -> Vec<u8> {
        let (a, b, c, d, e, bytes, text, list, option, raw) = value;
        let mut to = Writer::default();
        to.u8(*a).u16(*b).u32(*c).u64(*d).i32(*e).bytes(bytes).text(text);
        to.list(list, |to, item| {
            to.number(*item);
        });
        to.option(*option, |to, item| {
            to.u32(item);
        });
        to.raw(raw);
        assert!(!to.is_empty());
        let len = to.len();
        let bytes = to.into_bytes();
        assert_eq!(bytes.len(), len);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Everything> {
        let mut from = Reader::new(bytes);
        let value = (
            from.u8()?,
            from.u16()?,
            from.u32()?,
            from.u64()?,
            from.i32()?,
            from.bytes()?.to_vec(),
            from.text()?.to_owned(),
            from.list(Reader::number)?,
            from.option(Reader::u32)?,
            from.array()?,
        );
        assert!(from.position() <= bytes.len());
        from.end(value)
    }

    fn example() -> Everything {
        (1, 2, 3, 4, -5, vec![6; 7], "grüße".into(), vec![8, 9], Some(10), [11; 3])
    }

    #[test]
    fn fixed_widths_are_little_endian_and_unpadded() {
        let mut to = Writer::default();
        to.u8(0x12).u16(0x3456).i32(-2).u32(0x789a_bcde).text("ab");
        let expected = b"\x12\x56\x34\xfe\xff\xff\xff\xde\xbc\x9a\x78\x02\0\0\0\0\0\0\0ab";
        assert_eq!(to.into_bytes(), expected);
    }

    #[test]
    fn every_truncation_and_every_trailing_byte_is_refused() {
        let bytes = encode(&example());
        assert_eq!(decode(&bytes), Some(example()));
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None, "{len} bytes");
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn numbers_that_do_not_fit_and_text_that_is_not_utf8_are_refused() {
        let bytes = u64::from(u32::MAX).wrapping_add(1).to_le_bytes();
        assert_eq!(Reader::new(&bytes).number::<u32>(), None);
        assert_eq!(Reader::new(&bytes).number(), Some(1_u64 << 32));
        assert_eq!(Reader::new(b"\x01\0\0\0\0\0\0\0\xff").text(), None);
        assert_eq!(Reader::new(b"\x02\0\0\0\0\0\0\0").option(|_| Some(())), None);
    }

    // WE-5
    #[test]
    fn f29_a_count_beyond_the_bytes_is_refused_before_any_item() {
        let bytes = [&u64::MAX.to_le_bytes()[..], &[0; 16]].concat();
        let refused = Reader::new(&bytes).list::<u8>(|_| panic!("an item was read"));
        assert_eq!(refused, None);
        assert_eq!(Reader::new(&bytes).bytes(), None);
    }

    #[test]
    fn rest_gives_what_was_not_read() {
        let mut from = Reader::new(&[1, 2, 3]);
        assert_eq!((from.u8(), from.position()), (Some(1), 1));
        assert_eq!(from.rest(), [2, 3]);
    }

    proptest! {
        #![proptest_config(crate::proptest_config())]

        // WE-5
        #[test]
        fn f29_any_bytes_are_read_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let _ = decode(&bytes);
            let mut changed = encode(&example());
            let at = at.index(changed.len());
            changed[at] = byte;
            if let Some(value) = decode(&changed) {
                prop_assert_eq!(encode(&value), changed);
            }
        }
    }
}
