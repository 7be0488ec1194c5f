//! Files of a volume that hide each other.

use super::super::check::At;

/// Where a file is, and what puts it there.
struct File<'a> {
    path: &'a str,
    source: String,
}

impl File<'_> {
    fn shown(&self) -> String {
        if self.source.is_empty() { format!("{:?}", self.path) } else { format!("{:?} ({})", self.path, self.source) }
    }

    /// One is the other, or is where the other has a directory.
    fn hides(&self, other: &File<'_>) -> bool {
        let below = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        !other.path.is_empty() && (below(self.path, other.path) || below(other.path, self.path))
    }
}

pub(super) fn volumes(list: &At<'_>, told: &mut Vec<String>) {
    for volume in list.items() {
        let name = volume.field("name").text();
        for (kind, called, named) in
            [("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"), ("downwardAPI", "DownwardAPI", "")]
        {
            let source = volume.field(kind);
            let shown =
                if named.is_empty() { called.to_owned() } else { format!("{called} {:?}", source.field(named).text()) };
            overlaps(&files(&source, ""), name, &shown, told);
        }
        let mut all = Vec::new();
        for source in volume.field("projected").each("sources") {
            if source.is_empty() {
                told.push(format!("volume {name:?} (Projected) has no sources provided"));
                continue;
            }
            for (kind, called) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
                let part = source.field(kind);
                all.extend(files(&part, &format!("{called} {:?}", part.field("name").text())));
            }
            all.extend(files(&source.field("downwardAPI"), "DownwardAPI"));
            let token = source.field("serviceAccountToken");
            if token.exists() {
                all.push(File {
                    path: token.field("path").text().trim_end_matches('/'),
                    source: "ServiceAccountToken".into(),
                });
            }
        }
        overlaps(&all, name, "Projected", told);
    }
}

fn files<'a>(source: &At<'a>, called: &str) -> Vec<File<'a>> {
    let paths = source.each("items").into_iter().map(|item| item.field("path").text().trim_end_matches('/'));
    paths.map(|path| File { path, source: called.to_owned() }).collect()
}

fn overlaps(files: &[File<'_>], volume: &str, shown: &str, told: &mut Vec<String>) {
    for (index, file) in files.iter().enumerate().filter(|(_, file)| !file.path.is_empty()) {
        for other in files.iter().take(index).filter(|other| file.hides(other)) {
            told.push(format!(
                "volume {volume:?} ({shown}): overlapping paths: {} with {}",
                file.shown(),
                other.shown()
            ));
        }
    }
}
