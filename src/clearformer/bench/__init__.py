"""Side by side with what people use today: training, generation, loading and tokenising, in turn on one machine."""
