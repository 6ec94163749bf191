//! Which boot of the host this is: page caches live as long as it lasts (design.md 2).
//!
//! The environment is read at the edge; tests inject another boot through it (HIGHWATER_BOOT_ID).

use std::fs;
use std::hash::Hasher as _;
use std::io;
use std::path::Path;

use siphasher::sip128::{Hasher128 as _, SipHasher24};
use uuid::Uuid;

use crate::storage::{StorageError, StorageOperation, StorageResult};

const KERNEL_BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The boot id: `injected` when it is given and not empty, else the kernel's. An injected text that is no UUID stands for
/// one that is made from it.
///
/// # Errors
/// When the kernel's cannot be read.
pub fn boot_id(injected: Option<&str>) -> StorageResult<Uuid> {
    if let Some(text) = injected.map(str::trim).filter(|text| !text.is_empty()) {
        return Ok(Uuid::try_parse(text).unwrap_or_else(|_| uuid_of(text)));
    }
    let path = Path::new(KERNEL_BOOT_ID);
    let failed = |source| StorageError::new(StorageOperation::Read, path, source);
    let text = fs::read_to_string(path).map_err(failed)?;
    Uuid::try_parse(text.trim()).map_err(|e| failed(io::Error::new(io::ErrorKind::InvalidData, e)))
}

fn uuid_of(text: &str) -> Uuid {
    let mut hasher = SipHasher24::new();
    hasher.write(text.as_bytes());
    Uuid::from_u128(hasher.finish128().as_u128())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_boot_id_stays_the_same_while_the_host_runs() {
        let kernel = boot_id(None).unwrap();
        assert!(!kernel.is_nil());
        assert_eq!(boot_id(None).unwrap(), kernel);
        assert_eq!(boot_id(Some("  ")).unwrap(), kernel, "nothing is injected");
    }

    #[test]
    fn an_injected_text_is_another_boot() {
        let uuid = "b3c1f0a2-5d4e-4f6a-9b8c-7d6e5f4a3b2c";
        assert_eq!(boot_id(Some(uuid)).unwrap().to_string(), uuid);
        assert_eq!(boot_id(Some("second")).unwrap(), boot_id(Some("second\n")).unwrap());
        assert_ne!(boot_id(Some("second")).unwrap(), boot_id(Some("third")).unwrap());
    }
}
