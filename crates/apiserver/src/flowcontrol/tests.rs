//! The queues on a virtual clock: who goes on when, told as scenarios.

use std::time::Duration;

use tokio::sync::oneshot;

use super::queue_set::{Asker, QueueSet, Queuing, Start};
use super::width::Width;

const MILLI: Duration = Duration::from_millis(1);

/// A set whose requests have names.
struct World {
    set: QueueSet,
    now: Duration,
    known: Vec<(String, usize, Option<oneshot::Receiver<()>>)>,
}

impl World {
    fn new(queuing: Queuing, limit: usize) -> Self {
        Self { set: QueueSet::new(queuing, limit, Duration::ZERO), now: Duration::ZERO, known: Vec::new() }
    }

    /// A request of a flow comes: `true` if it goes on, `false` if it waits, or why it is refused.
    fn come(&mut self, name: &str, flow: u64, width: Width) -> Result<bool, &'static str> {
        match self.set.start(Asker::default(), width, flow, self.now) {
            Start::Rejected(reason) => Err(reason),
            Start::Execute(id) => {
                self.known.push((name.to_owned(), id, None));
                Ok(true)
            }
            Start::Wait(id, woken) => {
                self.known.push((name.to_owned(), id, Some(woken)));
                Ok(false)
            }
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.set.sync(self.now);
    }

    fn finish(&mut self, name: &str) {
        let at = self.known.iter().position(|(known, ..)| known == name).expect(name);
        let (_, id, _) = self.known.remove(at);
        self.set.finish(id, self.now);
    }

    /// Those who waited and were woken since the last question, in the order in which they came.
    fn woken(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        for (name, _, woken) in &mut self.known {
            if woken.as_mut().is_some_and(|woken| woken.try_recv().is_ok()) {
                *woken = None;
                names.push(name.clone());
            }
        }
        names
    }
}

fn queues(queues: usize, hand_size: usize, length: usize) -> Queuing {
    Queuing::Queue { queues, hand_size, length }
}

fn seats(initial: usize) -> Width {
    Width { initial, ..Width::ONE }
}

#[test]
fn an_exempt_level_takes_everything_and_one_without_queues_refuses() {
    let mut world = World::new(Queuing::Exempt, 0);
    assert_eq!(world.come("a", 1, seats(100)), Ok(true));
    let mut world = World::new(Queuing::Reject, 2);
    assert_eq!(world.come("a", 1, Width::ONE), Ok(true));
    assert_eq!(world.come("b", 1, Width::ONE), Ok(true));
    assert_eq!(world.come("c", 1, Width::ONE), Err("concurrency-limit"));
    world.finish("a");
    assert_eq!(world.come("d", 1, Width::ONE), Ok(true));
}

#[test]
fn a_queue_has_an_end() {
    let mut world = World::new(queues(1, 1, 2), 1);
    assert_eq!(world.come("a", 1, Width::ONE), Ok(true));
    assert_eq!(world.come("b", 1, Width::ONE), Ok(false));
    assert_eq!(world.come("c", 1, Width::ONE), Ok(false));
    assert_eq!(world.come("d", 1, Width::ONE), Err("queue-full"));
    world.finish("a");
    assert_eq!(world.woken(), ["b"]);
    assert_eq!(world.come("e", 1, Width::ONE), Ok(false));
    // One that is given up makes room, and is no longer woken.
    world.finish("c");
    world.finish("b");
    assert_eq!(world.woken(), ["e"]);
    world.finish("e");
    assert!(world.set.is_idle());
    assert_eq!((world.set.dispatched, world.set.rejected, world.set.cancelled), (3, 2, 1));
}

/// One flow asks for a hundred times as much as another, of which nothing is felt.
#[test]
fn a_flow_that_floods_waits_for_itself() {
    let mut world = World::new(queues(2, 1, 500), 2);
    for index in 0..200 {
        let _ = world.come(&format!("flood{index}"), 0, Width::ONE);
    }
    assert_eq!((world.set.executing, world.set.waiting), (2, 198));
    assert_eq!(world.come("calm", 1, Width::ONE), Ok(false));
    let mut rounds = 0;
    let mut running = vec!["flood0".to_owned(), "flood1".to_owned()];
    loop {
        rounds += 1;
        world.wait(10 * MILLI);
        let done = running.remove(0);
        world.finish(&done);
        running.extend(world.woken());
        if running.iter().any(|name| name == "calm") {
            break;
        }
    }
    assert!(rounds <= 2, "the calm one waited for {rounds} others");
}

/// Over time every flow gets as many seat-seconds as any other, however wide its requests are.
#[test]
fn seats_are_shared_by_work_not_by_number() {
    let mut world = World::new(queues(2, 1, 1000), 4);
    for index in 0..400 {
        let _ = world.come(&format!("wide{index}"), 0, seats(4));
        let _ = world.come(&format!("thin{index}"), 1, Width::ONE);
    }
    let mut running: Vec<String> = vec!["wide0".into()];
    let mut done = (0, 0);
    for _ in 0..100 {
        world.wait(3 * MILLI);
        for name in std::mem::take(&mut running) {
            world.finish(&name);
            if name.starts_with("wide") { done.0 += 1 } else { done.1 += 1 }
        }
        running.extend(world.woken());
    }
    let (wide, thin) = done;
    let ratio = f64::from(thin) / f64::from(wide * 4);
    assert!((0.8..1.25).contains(&ratio), "{wide} wide and {thin} thin ones");
}

#[test]
fn a_wide_request_waits_until_all_of_it_fits_and_is_not_passed() {
    let mut world = World::new(queues(1, 1, 10), 4);
    assert_eq!(world.come("a", 1, seats(2)), Ok(true));
    assert_eq!(world.come("b", 1, Width::ONE), Ok(true));
    assert_eq!(world.come("wide", 1, seats(3)), Ok(false));
    assert_eq!(world.come("c", 1, Width::ONE), Ok(false), "it would fit, but is not its turn");
    world.finish("b");
    assert_eq!(world.woken(), [""; 0]);
    world.finish("a");
    assert_eq!(world.woken(), ["wide", "c"]);
    // One that is wider than everything goes on alone.
    assert_eq!(world.come("huge", 1, seats(9)), Ok(false));
    world.finish("wide");
    assert_eq!(world.woken(), [""; 0]);
    world.finish("c");
    assert_eq!(world.woken(), ["huge"]);
}

#[test]
fn a_write_keeps_its_seats_while_its_watchers_are_told() {
    let mut world = World::new(queues(1, 1, 10), 4);
    let write = Width { initial: 1, last: 4, extra: 5 * MILLI };
    assert_eq!(world.come("write", 1, write), Ok(true));
    world.finish("write");
    assert_eq!((world.set.executing, world.set.seats_in_use), (0, 4));
    assert_eq!(world.come("next", 1, Width::ONE), Ok(false));
    assert_eq!(world.set.next_leave(), Some(5 * MILLI));
    world.wait(4 * MILLI);
    assert_eq!(world.woken(), [""; 0]);
    world.wait(MILLI);
    assert_eq!(world.woken(), ["next"]);
    assert_eq!(world.set.seats_in_use, 1);
    // With nobody waiting, they are given back when somebody comes.
    assert_eq!(world.come("again", 1, Width { last: 2, ..write }), Ok(true));
    world.finish("again");
    assert_eq!(world.set.next_leave(), None);
    world.now += 5 * MILLI;
    assert_eq!(world.come("wide", 1, seats(3)), Ok(true));
}

#[test]
fn a_changed_configuration_keeps_who_is_there() {
    let mut world = World::new(queues(4, 2, 10), 1);
    assert_eq!(world.come("a", 3, Width::ONE), Ok(true));
    for name in ["b", "c", "d"] {
        assert_eq!(world.come(name, 3, Width::ONE), Ok(false));
    }
    world.set.configure(queues(4, 2, 10), 2, world.now);
    assert_eq!(world.woken().len(), 1, "one more seat");
    world.set.configure(queues(1, 1, 10), 4, world.now);
    assert_eq!(world.woken().len(), 2);
    for name in ["a", "b", "c", "d"] {
        world.finish(name);
    }
    assert_eq!(world.set.queues.len(), 1, "the others go once they are empty");
    world.set.configure(Queuing::Reject, 1, world.now);
    assert_eq!(world.come("e", 3, Width::ONE), Ok(true));
    assert_eq!(world.come("f", 3, Width::ONE), Err("concurrency-limit"));
}

/// Whatever happens, the sums agree with the requests they are sums of.
#[test]
fn the_books_balance_after_anything() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut world = World::new(queues(8, 3, 5), 6);
    for step in 0..20_000 {
        match random(10) {
            0..=4 => {
                let initial = usize::try_from(1 + random(3)).unwrap();
                let extra = MILLI * u32::try_from(random(3)).unwrap();
                let width = Width { initial, last: if extra.is_zero() { 0 } else { 2 }, extra };
                let _ = world.come(&step.to_string(), random(20), width);
            }
            5..=7 if !world.known.is_empty() => {
                let index = usize::try_from(random(world.known.len() as u64)).unwrap();
                let name = world.known[index].0.clone();
                world.finish(&name);
            }
            8 => world.wait(MILLI * u32::try_from(random(4)).unwrap()),
            _ => {
                let queuing = queues(usize::try_from(1 + random(8)).unwrap(), 1, 5);
                world.set.configure(queuing, usize::try_from(1 + random(8)).unwrap(), world.now);
            }
        }
        let set = &world.set;
        let waiting = set.requests.iter().filter(|(_, request)| request.started.is_none());
        assert_eq!(waiting.clone().count(), set.waiting);
        assert_eq!(waiting.map(|(_, request)| request.width.seats()).sum::<usize>(), set.seats_waiting);
        let seated = set.requests.iter().filter(|(_, request)| request.started.is_some());
        assert_eq!(seated.map(|(_, request)| request.width.seats()).sum::<usize>(), set.seats_in_use);
        assert_eq!(set.queues.iter().map(|queue| queue.waiting.len()).sum::<usize>(), set.waiting);
        assert_eq!(set.queues.iter().map(|queue| queue.executing).sum::<usize>(), set.executing);
        assert_eq!(set.queues.iter().map(|queue| queue.seats_in_use).sum::<usize>(), set.seats_in_use);
        assert!(set.waiting == 0 || set.seats_in_use > 0, "somebody waits for nothing");
    }
}
