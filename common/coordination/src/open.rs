//! Opening a store that only some builds have.

use std::sync::Arc;

use highwater_types::Endpoint;

use crate::{Coordination, CoordinationError};

/// Opens the `etcd` store at these end points.
///
/// # Errors
/// As `EtcdCoordination::open`; [`CoordinationError::Invalid`] in a build without the cargo feature `etcd`.
#[cfg(feature = "etcd")]
pub async fn open_etcd(endpoints: &[Endpoint]) -> Result<Arc<dyn Coordination>, CoordinationError> {
    let store = crate::EtcdCoordination::open(endpoints, crate::EtcdOptions::default()).await?;
    Ok(Arc::new(store))
}

/// Opens the `etcd` store at these end points.
///
/// # Errors
/// [`CoordinationError::Invalid`]: this build is without the cargo feature `etcd`.
#[cfg(not(feature = "etcd"))]
pub async fn open_etcd(_endpoints: &[Endpoint]) -> Result<Arc<dyn Coordination>, CoordinationError> {
    Err(CoordinationError::Invalid("this program was built without the cargo feature etcd".to_owned()))
}
