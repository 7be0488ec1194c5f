//! The engines' tests: text scenarios, a naive model, crashes, faults below, etcd on either side.

#[cfg(test)]
mod api;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod child;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod etcd;
#[cfg(test)]
mod etcdctl;
#[cfg(test)]
mod failover;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod format;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod linearizability;
#[cfg(test)]
mod model;
#[cfg(test)]
mod property;
#[cfg(test)]
mod scenario;
#[cfg(test)]
mod session;
#[cfg(test)]
mod small_disk;
#[cfg(test)]
mod snapshot;
#[cfg(test)]
mod watch_service;
#[cfg(test)]
mod watching;
