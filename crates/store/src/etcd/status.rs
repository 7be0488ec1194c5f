//! Store errors as etcd's gRPC statuses, and back. Clients match on the texts, so they are etcd's to the letter.

use tonic::{Code, Status};

use crate::StoreError;

const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const FUTURE_REVISION: &str = "etcdserver: mvcc: required revision is a future revision";
const LEASE_NOT_FOUND: &str = "etcdserver: requested lease not found";
const LEASE_EXISTS: &str = "etcdserver: lease already exists";
const LEASE_TOO_LONG: &str = "etcdserver: too large lease TTL";
const TOO_LARGE: &str = "etcdserver: request is too large";
const TOO_MANY_OPS: &str = "etcdserver: too many operations in txn request";
const EMPTY_KEY: &str = "etcdserver: key is not provided";
const DUPLICATE_KEY: &str = "etcdserver: duplicate key given in txn request";
const KEY_NOT_FOUND: &str = "etcdserver: key not found";
const FULL: &str = "etcdserver: mvcc: database space exceeded";
const STOPPED: &str = "etcdserver: server stopped";

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Status {
        let (code, text) = match &error {
            StoreError::Compacted { .. } => (Code::OutOfRange, COMPACTED),
            StoreError::FutureRevision { .. } => (Code::OutOfRange, FUTURE_REVISION),
            StoreError::LeaseNotFound(_) => (Code::NotFound, LEASE_NOT_FOUND),
            StoreError::LeaseExists(_) => (Code::FailedPrecondition, LEASE_EXISTS),
            StoreError::LeaseTooLong { .. } => (Code::OutOfRange, LEASE_TOO_LONG),
            StoreError::TooLarge { .. } => (Code::InvalidArgument, TOO_LARGE),
            StoreError::TooManyOps { .. } => (Code::InvalidArgument, TOO_MANY_OPS),
            StoreError::EmptyKey => (Code::InvalidArgument, EMPTY_KEY),
            StoreError::DuplicateKey => (Code::InvalidArgument, DUPLICATE_KEY),
            StoreError::KeyNotFound => (Code::InvalidArgument, KEY_NOT_FOUND),
            StoreError::Full => (Code::ResourceExhausted, FULL),
            StoreError::Closed => (Code::Unavailable, STOPPED),
            StoreError::Poisoned(cause) => return Status::unavailable(format!("{error}: {cause}")),
            StoreError::Unavailable(_) | StoreError::Sealed(_) => return Status::unavailable(error.to_string()),
            StoreError::Refused(text) => return Status::unknown(text),
            StoreError::SlowWatcher => return Status::out_of_range(error.to_string()),
        };
        Status::new(code, text)
    }
}

/// What etcd's answer means. It tells neither revisions nor leases nor sizes: they are 0 here, and whoever asked fills them in.
pub(super) fn meaning(status: &Status) -> StoreError {
    match status.message() {
        COMPACTED => StoreError::Compacted { oldest: 0 },
        FUTURE_REVISION => StoreError::FutureRevision { asked: 0, current: 0 },
        LEASE_NOT_FOUND => StoreError::LeaseNotFound(0),
        LEASE_EXISTS => StoreError::LeaseExists(0),
        LEASE_TOO_LONG => StoreError::LeaseTooLong { seconds: 0, limit: 0 },
        TOO_LARGE => StoreError::TooLarge { bytes: 0, limit: super::MAX_REQUEST_BYTES },
        TOO_MANY_OPS => StoreError::TooManyOps { count: 0, limit: 0 },
        EMPTY_KEY => StoreError::EmptyKey,
        DUPLICATE_KEY => StoreError::DuplicateKey,
        KEY_NOT_FOUND => StoreError::KeyNotFound,
        FULL => StoreError::Full,
        text if matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled) => {
            StoreError::Unavailable(text.to_owned())
        }
        text => StoreError::Refused(text.to_owned()),
    }
}

pub(super) fn stopped() -> Status {
    Status::unavailable(STOPPED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_etcd_knows_comes_back_as_itself() {
        check(StoreError::Compacted { oldest: 0 }, Code::OutOfRange);
        check(StoreError::FutureRevision { asked: 0, current: 0 }, Code::OutOfRange);
        check(StoreError::LeaseNotFound(0), Code::NotFound);
        check(StoreError::LeaseExists(0), Code::FailedPrecondition);
        check(StoreError::LeaseTooLong { seconds: 0, limit: 0 }, Code::OutOfRange);
        check(StoreError::TooLarge { bytes: 0, limit: super::super::MAX_REQUEST_BYTES }, Code::InvalidArgument);
        check(StoreError::TooManyOps { count: 0, limit: 0 }, Code::InvalidArgument);
        check(StoreError::EmptyKey, Code::InvalidArgument);
        check(StoreError::DuplicateKey, Code::InvalidArgument);
        check(StoreError::KeyNotFound, Code::InvalidArgument);
        check(StoreError::Full, Code::ResourceExhausted);
    }

    #[track_caller]
    fn check(error: StoreError, code: Code) {
        let status = Status::from(error.clone());
        assert_eq!(status.code(), code, "{error}");
        assert_eq!(format!("{:?}", meaning(&status)), format!("{error:?}"));
    }
}
