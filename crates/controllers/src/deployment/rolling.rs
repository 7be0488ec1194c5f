//! One step of a rolling update, in numbers alone.

/// What the user wants: `replicas` pods, at most `max_surge` more, at most `max_unavailable` missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) replicas: i32,
    pub(super) max_surge: i32,
    pub(super) max_unavailable: i32,
}

/// A ReplicaSet: pods it is to have, and pods that are available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) replicas: i32,
    pub(super) available: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Roll {
    /// The new set's size.
    New(i32),
    /// The old sets' sizes, in the order they were given (oldest first).
    Old(Vec<i32>),
    Settled,
}

/// The new set is lifted first: what that leaves of the surge decides how far the old ones may come down.
pub(super) fn roll(want: Want, new: Size, old: &[Size]) -> Roll {
    let new_replicas = new_replicas(want, new.replicas, old.iter().map(|size| size.replicas).sum());
    if new_replicas != new.replicas {
        return Roll::New(new_replicas);
    }
    let sizes = old_replicas(want, new, old);
    if sizes.iter().zip(old).any(|(size, old)| *size != old.replicas) { Roll::Old(sizes) } else { Roll::Settled }
}

pub(super) fn new_replicas(want: Want, new: i32, old_total: i32) -> i32 {
    if new > want.replicas {
        return want.replicas;
    }
    let room = want.replicas + want.max_surge - old_total - new;
    new + room.min(want.replicas - new).max(0)
}

/// Unavailable pods of old sets go first: removing them costs nothing. Then as many available ones as may be missed.
fn old_replicas(want: Want, new: Size, old: &[Size]) -> Vec<i32> {
    let mut sizes: Vec<i32> = old.iter().map(|size| size.replicas).collect();
    let total: i32 = sizes.iter().sum::<i32>() + new.replicas;
    let min_available = want.replicas - want.max_unavailable;
    // New pods that are not available yet count as missing, so that a broken template cannot eat up the old pods.
    let mut removable = total - min_available - (new.replicas - new.available);
    if removable <= 0 {
        return sizes;
    }
    for (size, old) in sizes.iter_mut().zip(old) {
        let unhealthy = (*size - old.available).clamp(0, removable.max(0));
        *size -= unhealthy;
        removable -= unhealthy;
    }
    let available = new.available + old.iter().map(|size| size.available).sum::<i32>();
    let mut spare = (available - min_available).max(0);
    for size in &mut sizes {
        let down = (*size).min(spare);
        *size -= down;
        spare -= down;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// "want surge unavailable | new/available | old/available …"
    #[track_caller]
    fn check(case: &str, wanted: Roll) {
        let (want, new, old) = parse(case);
        assert_eq!(roll(want, new, &old), wanted, "{case}");
    }

    fn parse(case: &str) -> (Want, Size, Vec<Size>) {
        let number = |text: &str| text.parse::<i32>().unwrap();
        let size = |text: &str| {
            let (replicas, available) = text.split_once('/').unwrap();
            Size { replicas: number(replicas), available: number(available) }
        };
        let parts: Vec<_> = case.split(" | ").collect();
        let want: Vec<_> = parts[0].split(' ').map(number).collect();
        let want = Want { replicas: want[0], max_surge: want[1], max_unavailable: want[2] };
        (want, size(parts[1]), parts[2].split_whitespace().map(size).collect())
    }

    #[test]
    fn the_new_set_grows_within_the_surge() {
        check("6 1 0 | 0/0 | 6/6", Roll::New(1));
        check("6 2 0 | 1/1 | 3/3", Roll::New(5));
        check("6 2 0 | 2/2 | 6/6", Roll::Old(vec![4]));
        check("3 1 0 | 5/5 | 0/0", Roll::New(3));
        check("3 1 0 | 3/3 | 0/0", Roll::Settled);
    }

    #[test]
    fn old_sets_shrink_only_by_what_may_be_missed() {
        check("3 1 0 | 1/0 | 3/3", Roll::Settled);
        check("3 1 0 | 1/1 | 3/3", Roll::Old(vec![2]));
        check("3 0 1 | 0/0 | 3/3", Roll::Old(vec![2]));
        check("4 2 2 | 4/4 | 1/1 1/1", Roll::Old(vec![0, 0]));
    }

    #[test]
    fn unavailable_old_pods_go_first_and_a_broken_template_stops_the_rollout() {
        check("3 1 0 | 1/0 | 2/2 1/0", Roll::Settled);
        check("10 3 2 | 5/0 | 8/8", Roll::Settled);
        check("10 3 2 | 5/0 | 2/2 6/6", Roll::Settled);
        check("3 1 1 | 1/0 | 3/1", Roll::Old(vec![2]));
    }

    proptest! {
        /// Whatever state the pods are in, no step breaks the user's bounds, and healthy pods always finish the rollout.
        #[test]
        fn steps_keep_the_bounds_and_finish(
            replicas in 0..30i32, surge in 0..10i32, unavailable in 0..10i32, split in 0..=30i32, seed in any::<u64>(),
        ) {
            let (surge, unavailable) = if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable.min(replicas)) };
            let want = Want { replicas, max_surge: surge, max_unavailable: unavailable };
            let first = split.min(replicas);
            let mut old = vec![Size { replicas: first, available: first }, Size { replicas: replicas - first, available: replicas - first }];
            let mut new = Size { replicas: 0, available: 0 };
            let mut chance = seed;
            for _ in 0..500 {
                match roll(want, new, &old) {
                    Roll::New(size) => {
                        new.replicas = size;
                        new.available = new.available.min(size);
                    }
                    Roll::Old(sizes) => for (old, size) in old.iter_mut().zip(sizes) {
                        prop_assert!(size >= 0 && size <= old.replicas);
                        old.replicas = size;
                        old.available = old.available.min(size);
                    },
                    Roll::Settled if new.available == new.replicas => break,
                    Roll::Settled => (),
                }
                let total = new.replicas + old.iter().map(|size| size.replicas).sum::<i32>();
                let available = new.available + old.iter().map(|size| size.available).sum::<i32>();
                prop_assert!(total <= replicas + surge, "{total} pods");
                prop_assert!(available >= replicas - unavailable, "{available} available");
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if chance >> 63 == 1 && new.available < new.replicas {
                    new.available += 1;
                }
            }
            prop_assert_eq!(new.replicas, replicas);
            prop_assert_eq!(old.iter().map(|size| size.replicas).sum::<i32>(), 0);
        }
    }
}
