//! Lines of a file or of standard input, as bytes.
//!
//! What holds: a line is what stands between two `\n`, whatever else it holds; the last one needs none. No more than the
//! longest allowed line and one read is held: a longer line is passed over and told with its length. What a terminal
//! or a pipe has given is passed on at once.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use crate::outcome::CommandError;

/// How much is asked for at once, in bytes.
const READ_BYTES: usize = 256 * 1024;
/// How many reads may wait for whoever takes the lines.
const READ_AHEAD: usize = 4;

/// A line of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its number, from 1.
    pub(crate) number: u64,
    /// What it holds.
    pub(crate) content: Content,
}

/// What a line holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// All of it, without its `\n`.
    Whole(Bytes),
    /// It is longer than allowed.
    TooLong {
        /// Its length.
        bytes: u64,
    },
}

/// Where lines come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// A file, with its length in bytes where it has one.
    File(File, Option<u64>),
    /// Standard input.
    Stdin,
}

impl Source {
    /// Opens a file; standard input when there is none, or it is `-`.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, CommandError> {
        let Some(path) = path.filter(|path| path.as_os_str() != "-") else { return Ok(Self::Stdin) };
        let failed = |source| CommandError::Read { what: path.display().to_string(), source };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        Ok(Self::File(file, Some(metadata.len()).filter(|_| metadata.is_file())))
    }

    /// The length in bytes, where it is known.
    pub(crate) const fn length(&self) -> Option<u64> {
        match self {
            Self::File(_, length) => *length,
            Self::Stdin => None,
        }
    }

    /// Reads its lines; see [`read_ahead`].
    pub(crate) fn read(self, longest: usize) -> mpsc::Receiver<io::Result<Vec<Line>>> {
        match self {
            Self::File(file, _) => read_ahead(file, longest),
            Self::Stdin => read_ahead(io::stdin(), longest),
        }
    }
}

/// Reads lines in a thread of their own, since a read of a terminal can take for ever; a few reads ahead. Lines of more
/// than `longest` bytes are told as too long.
pub(crate) fn read_ahead(
    input: impl Read + Send + 'static,
    longest: usize,
) -> mpsc::Receiver<io::Result<Vec<Line>>> {
    let (sender, lines) = mpsc::channel(READ_AHEAD);
    std::thread::spawn(move || pass_on(Lines::new(input, longest), &sender));
    lines
}

fn pass_on<R: Read>(mut lines: Lines<R>, sender: &mpsc::Sender<io::Result<Vec<Line>>>) {
    while let Some(read) = lines.next_lines().transpose() {
        let failed = read.is_err();
        if sender.blocking_send(read).is_err() || failed {
            return;
        }
    }
}

/// Splits what it reads into lines.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: R,
    longest: usize,
    /// The beginning of a line that has not ended yet.
    buffer: BytesMut,
    /// How many lines have ended.
    number: u64,
    /// How much of a line that is too long was passed over.
    passed_over: Option<u64>,
    has_ended: bool,
}

impl<R: Read> Lines<R> {
    /// Lines of at most `longest` bytes.
    pub(crate) fn new(input: R, longest: usize) -> Self {
        Self { input, longest, buffer: BytesMut::new(), number: 0, passed_over: None, has_ended: false }
    }

    /// Reads until at least one line has ended, and returns all that have; `None` after the last.
    pub(crate) fn next_lines(&mut self) -> io::Result<Option<Vec<Line>>> {
        let mut lines = Vec::new();
        while lines.is_empty() && !self.has_ended {
            let begun = self.buffer.len();
            if self.fill()? == 0 {
                self.has_ended = true;
                lines.extend(self.last());
            } else {
                self.split(begun, &mut lines);
            }
        }
        Ok(Some(lines).filter(|lines| !lines.is_empty()))
    }

    /// Reads once, behind what is buffered.
    fn fill(&mut self) -> io::Result<usize> {
        let begun = self.buffer.len();
        self.buffer.resize(begun.saturating_add(READ_BYTES), 0);
        let room = self.buffer.get_mut(begun..).unwrap_or_default();
        let read = loop {
            match self.input.read(room) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.buffer.truncate(begun.saturating_add(*read.as_ref().unwrap_or(&0)));
        read
    }

    /// Takes the lines out of the buffer that have ended; the first `searched` bytes hold no end.
    fn split(&mut self, mut searched: usize, lines: &mut Vec<Line>) {
        while let Some(at) = self.buffer.get(searched..).and_then(|new| new.iter().position(|b| *b == b'\n'))
        {
            let mut line = self.buffer.split_to(searched.saturating_add(at).saturating_add(1));
            line.truncate(line.len().saturating_sub(1));
            lines.push(self.line(line.freeze()));
            searched = 0;
        }
        if self.passed_over.is_some() || self.buffer.len() > self.longest {
            let passed = self.passed_over.unwrap_or(0).saturating_add(self.buffer.len() as u64);
            self.passed_over = Some(passed);
            self.buffer.clear();
        }
    }

    /// What follows the last `\n`.
    fn last(&mut self) -> Option<Line> {
        if self.buffer.is_empty() && self.passed_over.is_none() {
            return None;
        }
        let rest = self.buffer.split().freeze();
        Some(self.line(rest))
    }

    fn line(&mut self, line: Bytes) -> Line {
        self.number = self.number.saturating_add(1);
        let bytes = self.passed_over.take().unwrap_or(0).saturating_add(line.len() as u64);
        let is_too_long = bytes > self.longest as u64;
        let content = if is_too_long { Content::TooLong { bytes } } else { Content::Whole(line) };
        Line { number: self.number, content }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives so many bytes with each read.
    struct Dribble<'a>(&'a [u8], usize);

    impl Read for Dribble<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let given = self.1.min(self.0.len());
            self.0.take(given as u64).read(buffer).inspect(|read| self.0 = &self.0[*read..])
        }
    }

    /// The lines of `input`, whose length stands for those that are too long.
    fn lines(input: &[u8], at_once: usize, longest: usize) -> Vec<Result<Vec<u8>, u64>> {
        let mut lines = Lines::new(Dribble(input, at_once), longest);
        let mut all = Vec::new();
        while let Some(next) = lines.next_lines().unwrap() {
            for line in next {
                assert_eq!(line.number, all.len() as u64 + 1);
                all.push(match line.content {
                    Content::Whole(bytes) => Ok(bytes.to_vec()),
                    Content::TooLong { bytes } => Err(bytes),
                });
            }
        }
        all
    }

    #[test]
    fn lines_are_the_same_however_they_are_read() {
        let input = b"one\n\n\xff\xfe\r\nlonger than the others\nlast";
        let expected: Vec<Result<Vec<u8>, u64>> =
            [&b"one"[..], b"", b"\xff\xfe\r", b"longer than the others", b"last"]
                .map(|l| Ok(l.to_vec()))
                .into();
        for at_once in [1, 2, 3, 7, 1000] {
            assert_eq!(lines(input, at_once, 22), expected, "{at_once} at once");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_told_with_its_length_and_the_next_one_is_read() {
        for at_once in [1, 4, 5, 1000] {
            let found = lines(b"12345\n123456\n1\n1234567", at_once, 5);
            assert_eq!(
                found,
                [Ok(b"12345".to_vec()), Err(6), Ok(b"1".to_vec()), Err(7)],
                "{at_once} at once"
            );
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_not_kept() {
        let input = vec![b'x'; 50 * READ_BYTES];
        let mut lines = Lines::new(&input[..], 10);
        let next = lines.next_lines().unwrap().unwrap();
        assert_eq!(next[0].content, Content::TooLong { bytes: input.len() as u64 });
        assert!(lines.buffer.capacity() <= 2 * READ_BYTES, "{}", lines.buffer.capacity());
    }

    #[test]
    fn an_input_without_bytes_has_no_lines_and_one_line_feed_is_an_empty_line() {
        assert_eq!(lines(b"", 1, 10), []);
        assert_eq!(lines(b"\n", 1, 10), [Ok(vec![])]);
        assert_eq!(lines(b"a\n", 1, 10), [Ok(b"a".to_vec())]);
    }
}
