//! What the demo replicates: a file, or the sample.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use crate::figures::{count, counted, size};
use crate::lines::{Content, Line, Lines, read_ahead};
use crate::outcome::CommandError;

/// The sample; see `cli/sample/README.md`.
const SAMPLE: &[u8] = include_bytes!("../../sample/paradise-lost.txt");
/// How often the sample is sent, so that there is something to see.
const SAMPLE_TIMES: usize = 50;
/// The longest line that is sent, in bytes: with it a request stays below the programs' default limit.
pub(super) const LINE_MAX: usize = 64 << 20;

/// Lines to replicate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// The sample, several times over.
    Sample,
    /// A file.
    File(PathBuf),
}

/// What an input holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Survey {
    /// How many lines.
    pub(super) records: u64,
    /// Their bytes, without line feeds.
    pub(super) bytes: u64,
    /// The longest line, in bytes.
    pub(super) longest: u64,
}

impl Input {
    /// The input that was named.
    pub(super) fn new(path: Option<&Path>) -> Self {
        path.map_or(Self::Sample, |path| Self::File(path.to_owned()))
    }

    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        match self {
            Self::Sample => Ok(Box::new(Repeated { bytes: SAMPLE, rest: SAMPLE, more: SAMPLE_TIMES - 1 })),
            Self::File(path) => {
                let file = File::open(path)?;
                if !file.metadata()?.is_file() {
                    return Err(io::Error::other("not a file; it has to be read twice"));
                }
                Ok(Box::new(file))
            }
        }
    }

    /// Reads it once, to know how much it is and what the topic has to allow.
    pub(super) fn survey(&self) -> Result<Survey, CommandError> {
        let failed = |source| CommandError::Read { what: self.to_string(), source };
        let mut lines = Lines::new(self.open().map_err(failed)?, LINE_MAX);
        let mut survey = Survey::default();
        while let Some(next) = lines.next_lines().map_err(failed)? {
            for line in next {
                let bytes = match line.content {
                    Content::Whole(bytes) => bytes.len() as u64,
                    Content::TooLong { bytes } => return Err(self.too_long(line.number, bytes)),
                };
                survey.records = survey.records.saturating_add(1);
                survey.bytes = survey.bytes.saturating_add(bytes);
                survey.longest = survey.longest.max(bytes);
            }
        }
        if survey.records == 0 {
            return Err(failed(io::Error::other("it is empty")));
        }
        Ok(survey)
    }

    fn too_long(&self, number: u64, bytes: u64) -> CommandError {
        CommandError::Failed(format!(
            "line {number} of {self} has {} bytes; the demo sends lines of up to {} bytes",
            count(bytes),
            count(LINE_MAX as u64)
        ))
    }

    /// Reads its lines.
    pub(super) fn lines(&self) -> Result<mpsc::Receiver<io::Result<Vec<Line>>>, CommandError> {
        let failed = |source| CommandError::Read { what: self.to_string(), source };
        Ok(read_ahead(self.open().map_err(failed)?, LINE_MAX))
    }
}

impl std::fmt::Display for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sample => write!(f, "the sample, {SAMPLE_TIMES} times over"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl std::fmt::Display for Survey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} ({}, the longest {})",
            counted(self.records, "record"),
            size(self.bytes),
            size(self.longest)
        )
    }
}

/// The same bytes again and again.
struct Repeated {
    bytes: &'static [u8],
    rest: &'static [u8],
    more: usize,
}

impl Read for Repeated {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() && self.more > 0 {
            (self.rest, self.more) = (self.bytes, self.more - 1);
        }
        self.rest.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_read_so_many_times() {
        let times = SAMPLE_TIMES as u64;
        let line_feeds = SAMPLE.iter().filter(|byte| **byte == b'\n').count() as u64;
        let survey = Input::Sample.survey().unwrap();
        assert_eq!(survey.records, times * line_feeds);
        assert_eq!(survey.bytes, times * (SAMPLE.len() as u64 - line_feeds));
    }

    #[test]
    fn a_file_is_surveyed_and_what_cannot_be_sent_is_told() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("input");
        std::fs::write(&path, b"one\n\n\xff\xfe more\nlast").unwrap();
        let survey = Input::new(Some(&path)).survey().unwrap();
        assert_eq!(survey, Survey { records: 4, bytes: 14, longest: 7 });
        std::fs::write(&path, b"").unwrap();
        assert!(Input::new(Some(&path)).survey().unwrap_err().to_string().contains("empty"));
        assert!(Input::new(Some(place.path())).survey().unwrap_err().to_string().contains("not a file"));
        let missing = Input::new(Some(&place.path().join("missing"))).survey().unwrap_err().to_string();
        assert!(missing.contains("missing"), "{missing}");
    }
}
