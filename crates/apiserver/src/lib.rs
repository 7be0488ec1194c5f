//! Ferry's apiserver.
