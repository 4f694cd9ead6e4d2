"""What is done around a turn: its prompt is assessed, its outcome reflected upon. Imported where that is on."""
