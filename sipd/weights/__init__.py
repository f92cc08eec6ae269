"""From bytes on disk to ready tiles: file formats, the tensor table, the plan, the readers, the stream."""
