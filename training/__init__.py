"""Learn: train, export and study controllers. The only room that imports torch."""
