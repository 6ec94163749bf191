//! Why the store did not do as asked, and whether it may have done so all the same.

/// An error of the coordination store. Texts are for people: they name the record and the cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoordinationError {
    /// The store could not be reached, or was held by another program for too long. Nothing was changed.
    #[error("coordination store unavailable: {0}")]
    Unavailable(String),
    /// The write may have been made, or may yet be. It stays pending until a higher version of the record is seen; reading
    /// the old version proves nothing (design.md 6.4). Proposing again against the same version is always safe.
    #[error("outcome of a write to the coordination store unknown: {0}")]
    Unknown(String),
    /// The record is not there: its topic was deleted, or never created.
    #[error("no such record: {0}")]
    NotFound(String),
    /// This handle cannot write; what it would write is delegated to the programs that can.
    #[error("this view of the coordination store is read-only")]
    ReadOnly,
    /// The record breaks a rule that holds for every record. A fault of the caller; never retried.
    #[error("refused by the coordination store: {0}")]
    Invalid(String),
    /// The store holds something that this program cannot read, or is of another format.
    #[error("unreadable coordination store: {0}")]
    Unreadable(String),
}

impl CoordinationError {
    /// Whether the same call can succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Unknown(_) => true,
            Self::NotFound(_) | Self::ReadOnly | Self::Invalid(_) | Self::Unreadable(_) => false,
        }
    }

    /// Whether the change may have been made in spite of the error.
    #[must_use]
    pub const fn may_have_committed(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}
