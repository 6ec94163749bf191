//! Log lines on standard error.
//!
//! What must hold: set up once per process, before the first line. Standard output stays free for what a program was
//! asked to print.

use std::fmt;
use std::io;
use std::str::FromStr;

use tracing_subscriber::filter::{EnvFilter, ParseError};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("text and json are allowed".to_owned()),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Why logging was not set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not one.
    #[error("log filter: {0}; allowed: for example info, or warn,highwater_log=debug")]
    Filter(#[from] ParseError),
    /// Logging was set up before in this process.
    #[error("logging is set up already")]
    SetUpBefore,
}

/// Checks a filter: `info`, `warn,highwater_log=debug`, …
///
/// # Errors
/// [`LogError::Filter`].
pub fn check_filter(filter: &str) -> Result<(), LogError> {
    EnvFilter::try_new(filter)?;
    Ok(())
}

/// Sets logging up for the whole process: lines that pass `filter` go to standard error.
///
/// # Errors
/// [`LogError`].
pub fn init(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let builder =
        tracing_subscriber::fmt().with_env_filter(EnvFilter::try_new(filter)?).with_writer(io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|_| LogError::SetUpBefore)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logging_is_set_up_once() {
        assert!(init(LogFormat::Json, "info").is_ok());
        assert!(matches!(init(LogFormat::Text, "info"), Err(LogError::SetUpBefore)));
    }

    #[test]
    fn a_bad_filter_is_refused_with_an_example() {
        let error = check_filter("highwater=loud").unwrap_err().to_string();
        assert!(error.contains("allowed"), "{error}");
        assert!(check_filter("warn,highwater_log=debug").is_ok());
        assert!("xml".parse::<LogFormat>().is_err());
    }
}
