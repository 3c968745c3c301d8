//! Text that must fit a bound and must be safe to print.

use std::borrow::Cow;
use std::fmt::Write;

/// The text cut to at most `max_bytes` bytes of UTF-8, head and tail kept, with a mark that says how much is
/// missing.
///
/// Where not even the mark fits, the head alone is left. A text that fits is borrowed as it is.
pub fn clip(text: &str, max_bytes: usize) -> Cow<'_, str> {
    if text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    let cut = Cut::of(text, max_bytes, char::len_utf8);
    Cow::Owned(format!("{}{}{}", &text[..cut.head], cut.mark, &text[cut.tail..]))
}

/// The text on one line and safe to print: control characters and invisible direction marks are escaped, and
/// the whole is cut to at most `max_bytes` bytes as by [`clip`], never inside an escape.
pub fn escape(text: &str, max_bytes: usize) -> Cow<'_, str> {
    let mut total = 0;
    let mut plain = true;
    for c in text.chars() {
        total += shown_len(c);
        plain &= !is_hidden(c);
        if total > max_bytes {
            let cut = Cut::of(text, max_bytes, shown_len);
            let mut out = String::with_capacity(max_bytes);
            push_shown(&mut out, &text[..cut.head]);
            out.push_str(&cut.mark);
            push_shown(&mut out, &text[cut.tail..]);
            return Cow::Owned(out);
        }
    }
    if plain {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(total);
    push_shown(&mut out, text);
    Cow::Owned(out)
}

/// Where to cut: `..head` and `tail..` stay, the mark goes between them.
struct Cut {
    head: usize,
    tail: usize,
    mark: String,
}

impl Cut {
    /// Only for a text whose shown length is above `max`; `width` is the shown length of a character.
    fn of(text: &str, max: usize, width: impl Fn(char) -> usize) -> Self {
        let mark_for = |missing: usize| format!(" …[{missing} bytes cut]… ");
        // No mark is longer than that of the whole text.
        let Some(room) = max.checked_sub(mark_for(text.len()).len()).filter(|room| *room >= 2) else {
            return Self { head: prefix(text.chars(), max, &width), tail: text.len(), mark: String::new() };
        };
        let head = prefix(text.chars(), room - room / 2, &width);
        let tail = text.len() - prefix(text[head..].chars().rev(), room / 2, &width);
        Self { head, tail, mark: mark_for(tail - head) }
    }
}

/// How many bytes of the text the first characters take whose shown length is at most `room`.
fn prefix(chars: impl Iterator<Item = char>, room: usize, width: &impl Fn(char) -> usize) -> usize {
    let mut bytes = 0;
    let mut shown = 0;
    for c in chars {
        shown += width(c);
        if shown > room {
            break;
        }
        bytes += c.len_utf8();
    }
    bytes
}

/// Characters that move the cursor, colour the terminal, end the line or change the direction of text.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{feff}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

fn shown_len(c: char) -> usize {
    if is_hidden(c) { c.escape_default().len() } else { c.len_utf8() }
}

fn push_shown(out: &mut String, text: &str) {
    for c in text.chars() {
        if is_hidden(c) {
            // Writing to a String cannot fail.
            let _ = write!(out, "{}", c.escape_default());
        } else {
            out.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn f34_head_and_tail_stay_and_the_mark_says_how_much_is_missing() {
        let text = format!("head {} tail", "x".repeat(1000));
        let cut = clip(&text, 60);
        assert!(cut.starts_with("head x") && cut.ends_with("x tail"), "{cut}");
        let missing: usize = cut.split(['[', ' ']).find_map(|word| word.parse().ok()).unwrap();
        let mark = format!(" …[{missing} bytes cut]… ");
        assert_eq!(cut.len() - mark.len() + missing, text.len());
    }

    #[test]
    fn a_text_that_fits_is_not_touched() {
        assert!(matches!(clip("grüße", 7), Cow::Borrowed("grüße")));
        assert!(matches!(escape("grüße", 7), Cow::Borrowed("grüße")));
    }

    #[test]
    fn a_room_too_small_for_the_mark_keeps_the_head() {
        assert_eq!(clip("grüße aus der ferne", 3), "gr");
        assert_eq!(clip("grüße", 0), "");
    }

    #[test]
    fn control_characters_and_direction_marks_are_shown_as_escapes() {
        assert_eq!(
            escape("a\x1b[31mb\n\0c\u{202e}d\u{9b}e\\n", 99),
            r"a\u{1b}[31mb\n\u{0}c\u{202e}d\u{9b}e\n"
        );
    }

    // WE-2
    proptest! {
        #![proptest_config(crate::proptest_config())]

        #[test]
        fn f34_any_text_fits_any_room(text in any::<String>(), max in 0usize..200) {
            let cut = clip(&text, max);
            prop_assert!(cut.len() <= max);
            if text.len() <= max {
                prop_assert_eq!(&*cut, text.as_str());
            }
        }

        #[test]
        fn escaped_text_fits_and_holds_nothing_hidden(
            text in "[\\x00-\\x{7f}ä…\\x{202e}\\x{1f600}]{0,80}", max in 0usize..200,
        ) {
            let shown = escape(&text, max);
            prop_assert!(shown.len() <= max);
            prop_assert!(!shown.chars().any(is_hidden));
        }

        #[test]
        fn an_escape_is_never_cut_in_two(count in 1usize..100, max in 0usize..200) {
            let text = "\u{1b}".repeat(count);
            let shown = escape(&text, max);
            prop_assert_eq!(shown.matches('\\').count(), shown.matches('}').count());
        }
    }
}
