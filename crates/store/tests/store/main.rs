//! The engine's tests: text scenarios, a naive model, crashes, faults below it.

#[cfg(test)]
mod crash;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod model;
#[cfg(test)]
mod property;
#[cfg(test)]
mod scenario;
#[cfg(test)]
mod watching;
