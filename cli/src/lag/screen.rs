//! Drawing over what was drawn before, on a terminal.

use std::io::{self, Write};

/// To the top left, without clearing: what is overwritten does not flicker.
const HOME: &str = "\x1b[H";
/// The rest of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Everything below.
const CLEAR_BELOW: &str = "\x1b[J";

/// Clears the screen.
pub(super) fn clear(out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{HOME}{CLEAR_BELOW}")
}

/// Draws lines over what was there. Those that do not fit are counted in the last one.
pub(super) fn draw(lines: &[String], out: &mut dyn Write) -> io::Result<()> {
    let height = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_row));
    draw_within(lines, height, out)
}

fn draw_within(lines: &[String], height: usize, out: &mut dyn Write) -> io::Result<()> {
    // The last line of the screen stays empty, for the cursor; a height of 0 is an unknown one.
    let room = if height < 3 { usize::MAX } else { height - 2 };
    write!(out, "{HOME}")?;
    for line in lines.iter().take(room) {
        writeln!(out, "{line}{CLEAR_LINE}")?;
    }
    let more = lines.len().saturating_sub(room);
    if more > 0 {
        writeln!(out, "{more} more{CLEAR_LINE}")?;
    }
    write!(out, "{CLEAR_BELOW}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(height: usize) -> String {
        let lines = ["one", "two", "three"].map(str::to_owned);
        let mut out = Vec::new();
        draw_within(&lines, height, &mut out).unwrap();
        String::from_utf8(out).unwrap().replace(CLEAR_LINE, "<").replace(CLEAR_BELOW, "#")
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        assert_eq!(drawn(5), "\x1b[Hone<\ntwo<\nthree<\n#");
        assert_eq!(drawn(4), "\x1b[Hone<\ntwo<\n1 more<\n#");
        assert_eq!(drawn(0), drawn(5), "the height is not known");
    }
}
