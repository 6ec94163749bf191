//! Where the programs of a node are.

use std::env;
use std::path::{Path, PathBuf};

use crate::outcome::CommandError;

/// The paths of both programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Programs {
    pub(super) leader_svc: PathBuf,
    pub(super) follower_agent: PathBuf,
}

impl Programs {
    /// Finds them in `bin_dir`; without it beside this program, then in PATH.
    pub(super) fn find(bin_dir: Option<&Path>) -> Result<Self, CommandError> {
        let places: Vec<PathBuf> = match bin_dir {
            Some(dir) => vec![dir.to_owned()],
            None => {
                let own = env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
                let path = env::var_os("PATH").unwrap_or_default();
                own.into_iter().chain(env::split_paths(&path)).collect()
            }
        };
        Ok(Self {
            leader_svc: find("leader-svc", &places)?,
            follower_agent: find("follower-agent", &places)?,
        })
    }
}

fn find(name: &str, places: &[PathBuf]) -> Result<PathBuf, CommandError> {
    let found = places.iter().map(|place| place.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let first = places.first().map_or_else(String::new, |place| format!(" in {}", place.display()));
        let rest = if places.len() > 1 { ", nor in PATH" } else { "" };
        CommandError::Failed(format!(
            "there is no {name}{first}{rest}: build it by cargo build --release, or name its directory by --bin-dir"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_are_found_in_the_named_directory_or_their_absence_is_told() {
        let place = tempfile::tempdir().unwrap();
        let error = Programs::find(Some(place.path())).unwrap_err().to_string();
        assert!(error.contains("leader-svc") && error.contains("--bin-dir"), "{error}");
        std::fs::write(place.path().join("leader-svc"), "").unwrap();
        let error = Programs::find(Some(place.path())).unwrap_err().to_string();
        assert!(error.contains("no follower-agent in"), "{error}");
        std::fs::write(place.path().join("follower-agent"), "").unwrap();
        assert_eq!(Programs::find(Some(place.path())).unwrap().leader_svc, place.path().join("leader-svc"));
    }
}
