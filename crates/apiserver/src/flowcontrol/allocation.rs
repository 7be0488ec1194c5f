//! Divides the server's seats among the priority levels, by what they could use and within what they may have.

const MIN_TARGET: f64 = 0.001;
const EPSILON: f64 = 1e-7;

/// What one level is to get: `lower <= target`, and between the bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) lower: f64,
    pub(super) upper: f64,
    pub(super) target: f64,
}

/// The allocations that sum to `sum` and of which each is the same multiple of its target, save where a bound holds it; and that
/// multiple. `None` where the bounds leave no such thing.
pub(super) fn allocate(sum: f64, items: &[Item]) -> Option<(Vec<f64>, f64)> {
    let target = |item: &Item| item.target.max(MIN_TARGET);
    let total = |value: fn(&Item) -> f64| items.iter().map(value).sum::<f64>();
    let (low, high) = (total(|item| item.lower), total(|item| item.upper));
    let wrong = |item: &Item| item.lower < 0.0 || item.target < item.lower || item.upper < item.lower;
    if sum < 0.0 || low - sum > EPSILON || sum - high > EPSILON || items.iter().any(wrong) {
        return None;
    }
    let at = |multiple: f64| {
        items.iter().map(|item| (multiple * target(item)).min(item.upper).max(item.lower)).collect::<Vec<_>>()
    };
    // The sum grows with the multiple, in straight lines between the bounds.
    let mut corners: Vec<f64> =
        items.iter().flat_map(|item| [item.lower / target(item), item.upper / target(item)]).collect();
    corners.sort_by(f64::total_cmp);
    let (mut before, mut reached) = (0.0, at(0.0).iter().sum::<f64>());
    for corner in corners {
        let next = at(corner).iter().sum::<f64>();
        if next >= sum {
            let slope = next - reached;
            let multiple = if slope > EPSILON { before + (sum - reached) / slope * (corner - before) } else { corner };
            return Some((at(multiple), multiple));
        }
        (before, reached) = (corner, next);
    }
    Some((at(before), before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_scaled_within_bounds() {
        check(0.0, &[(0.0, 10.0, 0.0)], Some(&[0.0]));
        check(10.0, &[(0.0, 20.0, 10.0), (0.0, 20.0, 10.0)], Some(&[5.0, 5.0]));
        check(30.0, &[(0.0, 100.0, 10.0), (0.0, 100.0, 20.0)], Some(&[10.0, 20.0]));
        check(30.0, &[(0.0, 5.0, 10.0), (0.0, 100.0, 20.0)], Some(&[5.0, 25.0]));
        check(30.0, &[(15.0, 100.0, 15.0), (0.0, 100.0, 45.0)], Some(&[15.0, 15.0]));
        check(30.0, &[(10.0, 10.0, 10.0), (20.0, 20.0, 20.0)], Some(&[10.0, 20.0]));
        check(31.0, &[(10.0, 10.0, 10.0), (20.0, 20.0, 20.0)], None);
        check(29.0, &[(10.0, 10.0, 10.0), (20.0, 20.0, 20.0)], None);
        check(10.0, &[(5.0, 4.0, 5.0)], None);
    }

    #[track_caller]
    fn check(sum: f64, items: &[(f64, f64, f64)], want: Option<&[f64]>) {
        let items: Vec<Item> =
            items.iter().map(|(lower, upper, target)| Item { lower: *lower, upper: *upper, target: *target }).collect();
        let found = allocate(sum, &items).map(|(allocations, _)| allocations);
        let same =
            |found: &Vec<f64>| want.is_some_and(|want| found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6));
        assert_eq!(found.is_some(), want.is_some(), "{found:?}");
        assert!(found.as_ref().is_none_or(same), "{found:?}, not {want:?}");
    }
}
