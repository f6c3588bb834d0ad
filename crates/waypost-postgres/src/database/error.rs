//! Failures of a statement, by the known effect and by the next action.

use std::error::Error as StdError;
use std::io;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use waypost::store::StoreError;

/// Why a statement has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Decided: the answer of the store call.
    Store(StoreError),
    /// Not sent, or certainly without effect: the server is away, full of connections, or starts.
    Away(Cause),
    /// Sent, without an answer: the statement may take effect, now or later.
    Lost(Cause),
    /// Refused by a conflict with another transaction; the same statement may succeed.
    Collided(Cause),
    /// A unique index has the row already.
    Taken,
    /// Refused by the server.
    Refused(Box<Error>),
}

/// The cause of a failure.
pub(crate) type Cause = Box<dyn StdError + Send + Sync>;

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Failure {
    /// Judges the error of a connection attempt: nothing was sent.
    pub(crate) fn of_connecting(error: Error) -> Self {
        match error.code() {
            Some(code) if is_away(code) => Self::Away(error.into()),
            Some(_) => Self::Refused(Box::new(error)),
            None => Self::Away(error.into()),
        }
    }

    /// Judges the error of a sent statement.
    pub(crate) fn of_statement(error: Error) -> Self {
        let Some(code) = error.code() else {
            // An invalid value was never sent; all other errors are losses of the connection.
            return if error.is_closed() || has_io(&error) {
                Self::Lost(error.into())
            } else {
                Self::Refused(Box::new(error))
            };
        };
        match *code {
            SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => {
                Self::Collided(error.into())
            }
            SqlState::UNIQUE_VIOLATION => Self::Taken,
            // The server or the session ended, before or after the commit.
            ref code if is_end(code) => Self::Lost(error.into()),
            ref code if is_away(code) => Self::Away(error.into()),
            _ => Self::Refused(Box::new(error)),
        }
    }

    /// Returns the error of the store call; `store` is the name of the store.
    pub(crate) fn into_store_error(self, store: &str) -> StoreError {
        let store = store.to_owned();
        match self {
            Self::Store(error) => error,
            // A standby answers, and refuses writes until it is the primary.
            Self::Away(source) if is_read_only(&source) => StoreError::Database { store, source },
            Self::Away(source) | Self::Collided(source) => StoreError::Unreachable { store, source },
            Self::Lost(source) => StoreError::Unknown { store, source },
            Self::Taken => StoreError::Invalid(format!("{store} has this row already")),
            Self::Refused(error) => refused(store, *error),
        }
    }
}

fn refused(store: String, error: Error) -> StoreError {
    let Some(code) = error.code().cloned() else {
        return StoreError::Unreachable { store, source: error.into() };
    };
    match code {
        SqlState::INSUFFICIENT_PRIVILEGE
        | SqlState::INVALID_PASSWORD
        | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => StoreError::Denied { store, source: error.into() },
        SqlState::INVALID_CATALOG_NAME => StoreError::Unreachable { store, source: error.into() },
        SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME => no_schema(store),
        SqlState::DISK_FULL => {
            StoreError::Full { place: store, source: io::Error::new(io::ErrorKind::StorageFull, error) }
        }
        SqlState::IO_ERROR => {
            StoreError::Io { action: "write", place: store, source: io::Error::other(error) }
        }
        _ => StoreError::Database { store, source: error.into() },
    }
}

/// Returns the error for a database without the tables of a store.
pub(crate) fn no_schema(store: String) -> StoreError {
    StoreError::NotFound { store, what: "tables of Waypost".to_owned() }
}

/// Returns whether the server cannot serve now, and certainly did not run the statement.
fn is_away(code: &SqlState) -> bool {
    matches!(
        *code,
        SqlState::CANNOT_CONNECT_NOW
            | SqlState::TOO_MANY_CONNECTIONS
            | SqlState::LOCK_NOT_AVAILABLE
            | SqlState::QUERY_CANCELED
            | SqlState::READ_ONLY_SQL_TRANSACTION
            | SqlState::SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION
            | SqlState::SQLSERVER_REJECTED_ESTABLISHMENT_OF_SQLCONNECTION
    )
}

/// Returns whether the server has no free connection.
pub(super) fn is_full(cause: &Cause) -> bool {
    let code = cause.downcast_ref::<Error>().and_then(Error::code);
    code == Some(&SqlState::TOO_MANY_CONNECTIONS)
}

fn is_read_only(cause: &Cause) -> bool {
    let code = cause.downcast_ref::<Error>().and_then(Error::code);
    code == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// Returns whether the server or the session ended during the statement.
fn is_end(code: &SqlState) -> bool {
    matches!(
        *code,
        SqlState::ADMIN_SHUTDOWN
            | SqlState::CRASH_SHUTDOWN
            | SqlState::CONNECTION_EXCEPTION
            | SqlState::CONNECTION_DOES_NOT_EXIST
            | SqlState::CONNECTION_FAILURE
            | SqlState::TRANSACTION_RESOLUTION_UNKNOWN
            | SqlState::PROTOCOL_VIOLATION
    )
}

fn has_io(error: &Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<io::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}
