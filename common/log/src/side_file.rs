//! Files that keep bytes which a log had to cut although somebody may still need them (design.md 6.5): `%020d.cut`.
//!
//! They hold the cut bytes of one or more segments, one after the other, as they stood there. Nothing reads them but people.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use highwater_types::Offset;

use crate::names;
use crate::storage::{Storage, StorageError, StorageFile, StorageOperation, StorageResult};

/// Bytes copied at once.
const COPY_BYTES: usize = 1 << 20;
/// How many side files one offset can have before a cut there is refused.
const SIDE_FILES_MAX: u32 = 1_000;

/// Copies the pieces into a new side file, durably, and returns its name.
pub(crate) fn keep<'a, S: Storage>(
    storage: &S,
    dir: &Path,
    from: Offset,
    pieces: impl Iterator<Item = (&'a S::File, Range<u64>)>,
) -> StorageResult<String> {
    let (path, side) = create(storage, dir, from)?;
    let mut position = 0;
    for (file, bytes) in pieces {
        position = copy(file, bytes, &side, position)?;
    }
    side.sync_all()?;
    storage.sync_dir(dir)?;
    assert_eq!(side.len()?, position, "every byte is kept");
    tracing::warn!(file = %path.display(), bytes = position, "kept bytes that are cut off the log");
    Ok(path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default())
}

fn create<S: Storage>(storage: &S, dir: &Path, from: Offset) -> StorageResult<(PathBuf, S::File)> {
    for copy in 0..SIDE_FILES_MAX {
        let path = names::cut_file(dir, from, copy);
        match storage.create_new(&path) {
            Ok(file) => return Ok((path, file)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    let source =
        io::Error::other(format!("{SIDE_FILES_MAX} files keep cuts at this offset already: remove some"));
    Err(StorageError::new(StorageOperation::Create, &names::cut_file(dir, from, 0), source))
}

/// Copies a range of bytes, as far as the file goes; returns where the copy ends.
pub(crate) fn copy<F: StorageFile, T: StorageFile>(
    from: &F,
    bytes: Range<u64>,
    to: &T,
    at: u64,
) -> StorageResult<u64> {
    let mut buf = vec![0; COPY_BYTES];
    let (mut position, mut at) = (bytes.start, at);
    while position < bytes.end {
        let want = usize::try_from(bytes.end.saturating_sub(position)).unwrap_or(COPY_BYTES).min(COPY_BYTES);
        let read = from.read_up_to(buf.get_mut(..want).unwrap_or_default(), position)?;
        if read == 0 {
            break;
        }
        to.write_all_at(buf.get(..read).unwrap_or_default(), at)?;
        position = position.saturating_add(read as u64);
        at = at.saturating_add(read as u64);
    }
    Ok(at)
}
