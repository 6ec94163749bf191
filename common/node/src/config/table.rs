//! The table of a program's settings, declared once.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write as _};
use std::ops::RangeInclusive;

use super::layers::{VARIABLE_PREFIX, Values};
use super::values::SettingValue;

/// What a setting is when no layer has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// It must be given.
    Required,
    /// It is absent.
    Optional,
    /// This text.
    Default(&'static str),
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The name, with dots.
    pub name: &'static str,
    /// For people; says the unit.
    pub doc: &'static str,
    /// What holds when no layer has it.
    pub fallback: Fallback,
    /// Checks a text; the error says what is allowed.
    pub check: fn(&str) -> Result<(), String>,
    /// From where to where it goes, for people; `None` when its type is all there is to it.
    pub range: fn() -> Option<String>,
}

impl Key {
    /// Whether it is a number, a size or a time by its name, and says no range.
    #[must_use]
    pub fn lacks_range(&self) -> bool {
        let is_number =
            [".ms", ".bytes"].iter().any(|end| self.name.ends_with(end)) || self.name.contains("num.");
        is_number && (self.range)().is_none()
    }

    /// `replica.fetch.wait.max.ms` → `replica-fetch-wait-max-ms`.
    #[must_use]
    pub fn flag(&self) -> String {
        self.name.replace('.', "-")
    }

    /// `replica.fetch.wait.max.ms` → `HIGHWATER_REPLICA_FETCH_WAIT_MAX_MS`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.name.replace('.', "_").to_ascii_uppercase())
    }
}

/// A struct of settings that [`settings!`](crate::settings) declared.
pub trait Settings: Sized {
    /// Its table.
    const KEYS: &'static [Key];

    /// Takes its settings out of the merged and checked layers.
    ///
    /// # Errors
    /// The first setting that is absent or illegal.
    fn from_values(values: &Values) -> Result<Self, String>;
}

/// Declares a struct of settings and its table:
///
/// ```
/// # use std::time::Duration;
/// highwater_node::settings! {
///     /// The settings of an example.
///     pub struct Example {
///         /// How long to wait for records, in milliseconds.
///         wait_max: Duration = "wait.max.ms", default "500ms", in Duration::ZERO..=Duration::from_secs(60);
///         /// Where to listen.
///         listen: std::net::SocketAddr = "listen", required;
///         /// A name for people.
///         label: Option<String> = "label", optional;
///     }
/// }
/// ```
///
/// The text of each setting is its documentation, its help, and its comment in the example file.
#[macro_export]
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $field:ident: $type:ty = $key:literal, $fallback:ident $($text:literal)? $(, in $range:expr)?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        $vis struct $name {
            $( $(#[doc = $doc])+ pub $field: $type, )*
        }

        impl $crate::config::Settings for $name {
            const KEYS: &'static [$crate::config::Key] = &[
                $( $crate::config::Key {
                    name: $key,
                    doc: concat!($($doc),+),
                    fallback: $crate::settings!(@fallback $fallback $($text)?),
                    check: |text| $crate::settings!(@check $type, text $(, $range)?),
                    range: || $crate::settings!(@range $($range)?),
                }, )*
            ];

            fn from_values(values: &$crate::config::Values) -> ::std::result::Result<Self, String> {
                Ok(Self { $( $field: values.read($key)?, )* })
            }
        }
    };
    (@fallback required) => { $crate::config::Fallback::Required };
    (@fallback optional) => { $crate::config::Fallback::Optional };
    (@fallback default $text:literal) => { $crate::config::Fallback::Default($text) };
    (@range) => { None };
    (@range $range:expr) => { Some($crate::config::in_words(&($range))) };
    (@check $type:ty, $text:ident) => { $crate::config::check::<$type>($text) };
    (@check $type:ty, $text:ident, $range:expr) => {
        $crate::config::check_within::<$type>($text, &($range))
    };
}

/// Checks that `text` is a value of the type. For [`settings!`](crate::settings).
///
/// # Errors
/// What is allowed.
pub fn check<T: SettingValue>(text: &str) -> Result<(), String> {
    T::read(text).map(drop)
}

/// Checks that `text` is a value of the type within `range`. For [`settings!`](crate::settings).
///
/// # Errors
/// What is allowed.
pub fn check_within<T: SettingValue + PartialOrd + Debug>(
    text: &str,
    range: &RangeInclusive<T>,
) -> Result<(), String> {
    let value = T::read(text).map_err(|allowed| format!("{allowed}, {}", in_words(range)))?;
    if range.contains(&value) { Ok(()) } else { Err(format!("{} is allowed", in_words(range))) }
}

/// A range of values for people. For [`settings!`](crate::settings).
pub fn in_words<T: Debug>(range: &RangeInclusive<T>) -> String {
    // A length of time of nothing calls itself 0ns, which is no unit of a setting.
    let in_words = |value: &T| {
        Some(format!("{value:?}")).filter(|text| text != "0ns").unwrap_or_else(|| "0s".to_owned())
    };
    format!("{} to {}", in_words(range.start()), in_words(range.end()))
}

/// What is wrong with a table itself: names used twice, names that cannot stand in one TOML file together (one would be a
/// value and a table), names without a text, defaults that are not legal.
#[must_use]
pub fn table_faults(keys: &[Key]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut flags = BTreeSet::new();
    for key in keys {
        if !flags.insert(key.flag()) {
            faults.push(format!("{}: the name or its flag is used twice", key.name));
        }
        if keys
            .iter()
            .any(|other| other.name.strip_prefix(key.name).is_some_and(|rest| rest.starts_with('.')))
        {
            faults.push(format!("{}: another name goes on from it", key.name));
        }
        if !key.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.') {
            faults.push(format!("{}: a name is lower-case words with dots", key.name));
        }
        if key.doc.trim().is_empty() {
            faults.push(format!("{}: it has no text", key.name));
        }
        if let Fallback::Default(text) = key.fallback
            && let Err(allowed) = (key.check)(text)
        {
            faults.push(format!("{}: its default '{text}' is not legal: {allowed}", key.name));
        }
    }
    faults
}

/// A configuration file with every setting: defaults as comments, required ones to be filled in.
#[must_use]
pub fn example_file(program: &str, keys: &[Key]) -> String {
    let mut file = format!(
        "# Every setting of {program}. Priority, rising: this file (--config FILE), the environment, flags.\n"
    );
    for key in keys {
        let doc = key.doc.trim();
        let (mark, value) = match key.fallback {
            Fallback::Required => ("", ""),
            Fallback::Optional => ("# ", ""),
            Fallback::Default(text) => ("# ", text),
        };
        let range = (key.range)().map(|range| format!("# {range}\n")).unwrap_or_default();
        // Writing to a string does not fail.
        let _ = write!(
            file,
            "\n# {doc}\n{range}# --{}, {}\n{mark}{} = \"{value}\"\n",
            key.flag(),
            key.variable(),
            key.name
        );
    }
    file
}
