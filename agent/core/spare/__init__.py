"""What a node can lend: samples and limits in, offers out."""
