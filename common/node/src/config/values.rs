//! What a setting's text can mean. Each type says what it allows, in the words of an error message.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use highwater_telemetry::{LogFormat, OtlpEndpoint, SamplingRatio};
use highwater_types::{ByteRate, Endpoint, NodeId, ThrottledReplicas, units};

/// A type that a setting can have.
pub trait SettingValue: Sized {
    /// Reads the text of a layer.
    ///
    /// # Errors
    /// What is allowed instead.
    fn read(text: &str) -> Result<Self, String>;

    /// What stands for "no layer has it"; `None` where the type has nothing for that.
    fn absent() -> Option<Self> {
        None
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    fn read(text: &str) -> Result<Self, String> {
        T::read(text).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// The size as a `u32`; the largest `u32` where it is larger. Bound the setting's range so that it never is.
    #[must_use]
    pub fn as_u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }

    /// The size as a `usize`.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// In the largest unit that holds it exactly.
impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |(_, bytes): &(&str, u64)| self.0 >= *bytes && self.0.is_multiple_of(*bytes);
        let units = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        let (unit, bytes) = units.into_iter().find(exact).unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

impl SettingValue for ByteSize {
    fn read(text: &str) -> Result<Self, String> {
        units::parse_bytes(text).map(Self)
    }
}

impl SettingValue for Duration {
    fn read(text: &str) -> Result<Self, String> {
        units::parse_duration(text)
    }
}

impl SettingValue for bool {
    fn read(text: &str) -> Result<Self, String> {
        parsed(text, "true and false")
    }
}

impl SettingValue for u32 {
    fn read(text: &str) -> Result<Self, String> {
        parsed(text, "whole numbers")
    }
}

impl SettingValue for NonZeroU32 {
    fn read(text: &str) -> Result<Self, String> {
        parsed(text, "whole numbers from 1 on")
    }
}

impl SettingValue for ByteRate {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl SettingValue for ThrottledReplicas {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl SettingValue for NodeId {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

/// An address that others are told, or that this program calls.
impl SettingValue for Endpoint {
    fn read(text: &str) -> Result<Self, String> {
        let endpoint: Self = text.trim().parse()?;
        if text.trim().rsplit_once(':').is_some_and(|(_, port)| port.parse() == Ok(0)) {
            return Err("a port from 1 to 65535 is allowed: nobody can reach port 0".to_owned());
        }
        if text.trim().parse().is_ok_and(|address: SocketAddr| address.ip().is_unspecified()) {
            return Err("the address of one host is allowed: nobody can reach \"any\"".to_owned());
        }
        Ok(endpoint)
    }
}

impl SettingValue for LogFormat {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl SettingValue for OtlpEndpoint {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl SettingValue for SamplingRatio {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl SettingValue for SocketAddr {
    fn read(text: &str) -> Result<Self, String> {
        parsed(text, "IP:PORT, for example 0.0.0.0:9400 or [::]:9400 (port 0: any free one)")
    }
}

impl SettingValue for PathBuf {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("a path is allowed".to_owned()) } else { Ok(text.into()) }
    }
}

impl SettingValue for String {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

fn parsed<T: FromStr>(text: &str, allowed: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("{allowed} are allowed"))
}
