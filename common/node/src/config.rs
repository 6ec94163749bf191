//! Configuration in layers: defaults, a TOML file, the environment, flags; each overrides those before it.
//!
//! A program declares each of its settings once, with [`settings!`](crate::settings): name, type, default, legal range and
//! text. From that come the typed struct, the checks, `--help`, and the example file.
//!
//! | layer | how a setting is written |
//! |---|---|
//! | file (`--config FILE`) | `replica.fetch.wait.max.ms = "500ms"`, or nested tables `[replica.fetch]` … |
//! | environment | `HIGHWATER_REPLICA_FETCH_WAIT_MAX_MS=500ms` |
//! | flag | `--replica-fetch-wait-max-ms 500ms` |
//!
//! What must hold: an unknown name or an illegal value in any layer is an error, even where a later layer overrides it; the
//! error names the setting, the value, where it came from and what is allowed; all errors are shown at once.

mod common;
mod launch;
mod layers;
mod table;
mod values;

pub use common::{
    CommonSettings, CoordinationTarget, IO_THREADS_MAX, LogFilter, RECOVERY_THREADS_MAX, advertised_endpoint,
};
pub use launch::{ProgramInfo, from_command_line};
pub use layers::{ConfigErrors, Sources, Values, load};
pub use table::{Fallback, Key, Settings, check, check_within, example_file, in_words, table_faults};
pub use values::{ByteSize, SettingValue};

#[cfg(test)]
#[path = "config_test.rs"]
mod tests;
