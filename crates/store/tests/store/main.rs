//! The engine's tests: text scenarios, a naive model, crashes, faults below it.

mod crash;
mod faults;
mod lifecycle;
mod model;
mod property;
mod scenario;
mod watching;
