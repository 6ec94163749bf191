//! The directory in which the demo's nodes work.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::outcome::CommandError;

/// A directory of the demo's own.
#[derive(Debug)]
pub(super) enum Place {
    /// Removed at the end, unless it is left.
    Temporary(TempDir),
    /// The one that was named; it stays.
    Named(PathBuf),
}

impl Place {
    /// Makes the directory that was named, or a temporary one.
    pub(super) fn make(named: Option<&Path>) -> Result<Self, CommandError> {
        let Some(path) = named else {
            let made = tempfile::Builder::new().prefix("highwater-demo-").tempdir();
            let failed = |e| CommandError::Failed(format!("cannot make a temporary directory: {e}"));
            return Ok(Self::Temporary(made.map_err(failed)?));
        };
        let failed = |e| CommandError::Failed(format!("cannot use {}: {e}", path.display()));
        fs::create_dir_all(path).map_err(failed)?;
        if fs::read_dir(path).map_err(failed)?.next().is_some() {
            return Err(CommandError::Usage(format!(
                "{} is not empty; name another directory",
                path.display()
            )));
        }
        // The programs may be started from elsewhere.
        Ok(Self::Named(fs::canonicalize(path).map_err(failed)?))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Named(path) => path,
        }
    }

    /// Leaves it where it is.
    pub(super) fn leave(self) {
        if let Self::Temporary(dir) = self {
            let _ = dir.keep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_directory_goes_and_a_named_or_left_one_stays() {
        let gone = Place::make(None).unwrap();
        let path = gone.path().to_owned();
        assert!(path.is_dir());
        drop(gone);
        assert!(!path.exists());

        let root = tempfile::tempdir().unwrap();
        let named = root.path().join("a/b");
        drop(Place::make(Some(&named)).unwrap());
        assert!(named.is_dir());

        let left = Place::make(None).unwrap();
        let path = left.path().to_owned();
        left.leave();
        assert!(path.is_dir());
        fs::remove_dir(path).unwrap();
    }

    #[test]
    fn a_directory_that_holds_something_is_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("precious"), "").unwrap();
        let error = Place::make(Some(root.path())).unwrap_err();
        assert!(matches!(error, CommandError::Usage(_)), "{error}");
    }
}
