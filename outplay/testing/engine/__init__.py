"""The conformance suite for engines, one module per topic; `suite` combines them."""
