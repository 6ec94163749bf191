//! The run in words, one line per event; made only when somebody wants to read it.

/// The lines so far.
#[derive(Debug)]
pub(super) struct Trace {
    wanted: bool,
    text: String,
}

impl Trace {
    pub(super) const fn new(wanted: bool) -> Self {
        Self { wanted, text: String::new() }
    }

    /// Adds a line.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.wanted {
            self.text.push_str(&line());
            self.text.push('\n');
        }
    }

    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }
}
