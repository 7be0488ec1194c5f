//! Ferry's cri.
