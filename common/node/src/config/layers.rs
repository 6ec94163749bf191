//! Reading the layers, checking each, and merging them. Nothing here touches the process: files, variables and flags come
//! in as arguments.

use std::collections::BTreeMap;
use std::fmt;

use super::table::{Fallback, Key};
use super::values::SettingValue;

/// Every variable that is a setting begins so.
pub(super) const VARIABLE_PREFIX: &str = "HIGHWATER_";

/// Variables of that prefix that are not settings: one stands in for a fact of the machine, for tests; one is the command
/// line tool's.
const NOT_SETTINGS: &[&str] = &["HIGHWATER_BOOT_ID", "HIGHWATER_BOOTSTRAP"];

/// The longest value that an error repeats, in characters.
const SHOWN_MAX: usize = 80;

/// What the layers hold, before it is checked.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The TOML file's name (for errors) and text.
    pub file: Option<(String, String)>,
    /// The environment.
    pub variables: Vec<(String, String)>,
    /// Flags that were given, by the setting's name.
    pub flags: Vec<(&'static str, String)>,
}

/// Everything that is wrong with the configuration, one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<String>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// The merged layers: every value was checked.
#[derive(Clone, Debug, Default)]
pub struct Values {
    texts: BTreeMap<&'static str, String>,
}

impl Values {
    /// Reads one setting. For [`settings!`](crate::settings).
    ///
    /// # Errors
    /// That it is absent, or what is allowed.
    pub fn read<T: SettingValue>(&self, name: &'static str) -> Result<T, String> {
        match self.texts.get(name) {
            Some(text) => T::read(text).map_err(|allowed| format!("setting {name}: {allowed}")),
            None => T::absent().ok_or_else(|| format!("setting {name} is required")),
        }
    }
}

/// Checks every layer against the table and merges them.
///
/// # Errors
/// Everything that is wrong, in all layers.
pub fn load(keys: &[Key], sources: &Sources) -> Result<Values, ConfigErrors> {
    debug_assert_eq!(super::table_faults(keys), Vec::<String>::new(), "the table itself is sound");
    let mut loader = Loader { keys, values: Values::default(), errors: Vec::new() };
    for key in keys {
        if let Fallback::Default(text) = key.fallback {
            loader.values.texts.insert(key.name, text.to_owned());
        }
    }
    if let Some((name, text)) = &sources.file {
        loader.file(name, text);
    }
    for (name, value) in &sources.variables {
        loader.variable(name, value);
    }
    for (name, value) in &sources.flags {
        if let Some(key) = keys.iter().find(|key| key.name == *name) {
            loader.set(key, value, &format!("--{}", key.flag()));
        }
    }
    loader.finish()
}

struct Loader<'a> {
    keys: &'a [Key],
    values: Values,
    errors: Vec<String>,
}

impl Loader<'_> {
    fn file(&mut self, file: &str, text: &str) {
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(error) => {
                self.errors.push(format!("{file}: not TOML: {}", error.to_string().trim_end()));
                return;
            }
        };
        let mut found = Vec::new();
        flatten("", &toml::Value::Table(table), &mut found);
        let mut seen = BTreeMap::new();
        for (name, value) in found {
            if seen.insert(name.clone(), ()).is_some() {
                self.errors.push(format!("setting {name} stands twice in {file}"));
            }
            match self.keys.iter().find(|key| key.name == name) {
                Some(key) => self.set(key, &value, file),
                None => self.unknown(&name, &value, file),
            }
        }
    }

    fn variable(&mut self, name: &str, value: &str) {
        let Some(rest) = name.strip_prefix(VARIABLE_PREFIX) else { return };
        match self.keys.iter().find(|key| key.variable() == name) {
            Some(key) => self.set(key, value, name),
            None if NOT_SETTINGS.contains(&name) || is_service_link(rest) => {}
            None => self.unknown(name, value, "the environment"),
        }
    }

    fn set(&mut self, key: &Key, value: &str, source: &str) {
        match (key.check)(value) {
            Ok(()) => drop(self.values.texts.insert(key.name, value.to_owned())),
            Err(allowed) => self.errors.push(format!(
                "setting {} = '{}' (from {source}) is not legal: {allowed}",
                key.name,
                shown(value)
            )),
        }
    }

    fn unknown(&mut self, name: &str, value: &str, source: &str) {
        let known: Vec<&str> = self.keys.iter().map(|key| key.name).collect();
        self.errors.push(format!(
            "unknown setting {} = '{}' in {source}; allowed are: {}",
            shown(name),
            shown(value),
            known.join(", ")
        ));
    }

    fn finish(mut self) -> Result<Values, ConfigErrors> {
        for key in self.keys {
            // A value that was refused has its error already.
            let refused = self.errors.iter().any(|e| e.starts_with(&format!("setting {} = ", key.name)));
            if key.fallback == Fallback::Required && !self.values.texts.contains_key(key.name) && !refused {
                self.errors.push(format!(
                    "setting {} is required: --{} VALUE, {}=VALUE, or {} = \"VALUE\" in the file",
                    key.name,
                    key.flag(),
                    key.variable(),
                    key.name
                ));
            }
        }
        if self.errors.is_empty() { Ok(self.values) } else { Err(ConfigErrors(self.errors)) }
    }
}

/// Nested tables as names with dots; every other value as text.
fn flatten(prefix: &str, value: &toml::Value, found: &mut Vec<(String, String)>) {
    match value {
        toml::Value::Table(table) => {
            for (name, value) in table {
                let dot = if prefix.is_empty() { "" } else { "." };
                flatten(&format!("{prefix}{dot}{name}"), value, found);
            }
        }
        toml::Value::String(text) => found.push((prefix.to_owned(), text.clone())),
        toml::Value::Integer(_)
        | toml::Value::Float(_)
        | toml::Value::Boolean(_)
        | toml::Value::Datetime(_)
        | toml::Value::Array(_) => found.push((prefix.to_owned(), value.to_string())),
    }
}

/// Variables that Kubernetes puts into every container beside a Service whose name begins with the prefix.
fn is_service_link(rest: &str) -> bool {
    let of_port = |rest: &str| {
        ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| {
            rest.split_once(protocol).is_some_and(|(port, _)| {
                port.rsplit_once("PORT_").is_some_and(|(_, n)| n.parse::<u16>().is_ok())
            })
        })
    };
    let ends = |end: &str| rest == end || rest.ends_with(&format!("_{end}"));
    ends("SERVICE_HOST")
        || ends("SERVICE_PORT")
        || rest.contains("SERVICE_PORT_")
        || ends("PORT")
        || of_port(rest)
}

fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    if text.chars().count() > SHOWN_MAX {
        shown.push('…');
    }
    shown
}
