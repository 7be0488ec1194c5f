//! Ferry's store.
