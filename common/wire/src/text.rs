//! Bounds for text that comes from a peer or goes into a header.

/// The start of `text`, at most `limit` bytes, cut between characters, with `…` where something was cut off.
pub(crate) fn clip(text: &str, limit: usize) -> String {
    const MORE: char = '…';
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit.saturating_sub(MORE.len_utf8());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut clipped = text.get(..end).unwrap_or_default().to_owned();
    clipped.push(MORE);
    clipped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters_and_within_the_limit() {
        assert_eq!(clip("short", 5), "short");
        assert_eq!(clip("longer", 5), "lo…");
        let emoji = "\u{1F600}".repeat(100);
        for limit in 3..20 {
            assert!(clip(&emoji, limit).len() <= limit, "{limit}");
        }
    }
}
