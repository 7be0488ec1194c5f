//! A quantity that is understood is written as one that is worth the same.
#![no_main]

use api::quantity::Quantity;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(quantity) = Quantity::parse(text) {
        let again = Quantity::parse(&quantity.to_string()).expect("a quantity we wrote");
        // What is smaller than can be written was rounded, once.
        assert_eq!(again.value(), quantity.value(), "{text:?} became {quantity}");
        let _ = quantity.plus(again).minus(again);
    }
});
