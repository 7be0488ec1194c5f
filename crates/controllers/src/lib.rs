//! Ferry's controllers.
