//! The flags that bound what is taken in of an image. Every command that opens an image store has them.

use anyhow::{Context as _, Result};
use api::quantity::Quantity;
use clap::Args;

#[derive(Args, Clone)]
#[command(next_help_heading = "Images")]
pub(crate) struct ImageLimits {
    /// Largest size of an image's layer, uncompressed; a larger one is not pulled or imported
    #[arg(long, global = true, default_value = "32Gi", value_name = "QUANTITY")]
    image_layer_max_size: String,
    /// Most files and directories that a layer of an image may have
    #[arg(long, global = true, default_value_t = 1_000_000, value_name = "NUMBER")]
    image_layer_max_entries: u64,
}

impl ImageLimits {
    pub(crate) fn parse(&self) -> Result<runtime::ImageLimits> {
        let size = &self.image_layer_max_size;
        let quantity = Quantity::parse(size).ok().and_then(|size| u64::try_from(size.value()).ok());
        let layer_max_bytes = quantity.filter(|bytes| *bytes > 0);
        let layer_max_bytes =
            layer_max_bytes.with_context(|| format!("--image-layer-max-size: {size:?} is not a positive size"))?;
        Ok(runtime::ImageLimits { layer_max_bytes, layer_max_entries: self.image_layer_max_entries })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        limits: ImageLimits,
    }

    #[test]
    fn the_limits_are_the_runtimes_unless_they_are_given() {
        let parse = |flags: &[&str]| {
            let command = Command::try_parse_from(["ferry"].iter().chain(flags)).map_err(anyhow::Error::from);
            command.and_then(|command| command.limits.parse())
        };
        assert_eq!(parse(&[]).expect("parsed"), runtime::ImageLimits::default());
        let given = parse(&["--image-layer-max-size=100Mi", "--image-layer-max-entries=7"]).expect("parsed");
        assert_eq!(given, runtime::ImageLimits { layer_max_bytes: 100 << 20, layer_max_entries: 7 });
        for flag in ["--image-layer-max-size=0", "--image-layer-max-size=-1Gi", "--image-layer-max-size=much"] {
            assert!(parse(&[flag]).is_err_and(|error| error.to_string().contains("not a positive size")), "{flag}");
        }
        assert!(parse(&["--image-layer-max-entries=-1"]).is_err());
    }
}
