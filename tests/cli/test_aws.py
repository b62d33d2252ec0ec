"""The command line's clients of AWS."""

from lakesync.cli.connection import Aws, Connection


def test_aws_clients_are_cached_by_service_and_timeout() -> None:
    aws = Aws(Connection(gateway="g", url="", region="us-east-1", emulated=True))
    client, patient = aws.client("lambda"), aws.client("lambda", answer_s_max=600)

    assert aws.client("lambda") is client
    assert aws.client("lambda", answer_s_max=600) is patient
    assert client.meta.config.read_timeout == 60
    assert patient.meta.config.read_timeout == 600
    assert aws.client("s3").meta.service_model.service_name == "s3"
